#define LANES "lanes_neon.h"
#define LEVEL LEVEL_NEON
#define LEVEL_NAME "neon"
#include "level.h"
