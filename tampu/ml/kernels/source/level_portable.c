#define LANES "lanes_portable.h"
#define LEVEL LEVEL_PORTABLE
#define LEVEL_NAME "portable"
#include "level.h"
