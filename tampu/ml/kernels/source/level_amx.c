#define HAS_AMX
#define TILES "amx.h"
#define LANES "lanes_avx512bf16.h"
#define LEVEL LEVEL_AMX
#define LEVEL_NAME "amx"
#include "level.h"
