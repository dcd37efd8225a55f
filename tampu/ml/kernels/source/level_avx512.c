#define LANES "lanes_avx512.h"
#define LEVEL LEVEL_AVX512
#define LEVEL_NAME "avx512"
#include "level.h"
