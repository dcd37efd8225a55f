#define LANES "lanes_avx512bf16.h"
#define LEVEL LEVEL_AVX512BF16
#define LEVEL_NAME "avx512bf16"
#include "level.h"
