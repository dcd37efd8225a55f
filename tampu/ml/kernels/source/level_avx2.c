#define LANES "lanes_avx2.h"
#define LEVEL LEVEL_AVX2
#define LEVEL_NAME "avx2"
#include "level.h"
