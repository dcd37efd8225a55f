#define LANES "lanes_i8mm.h"
#define LEVEL LEVEL_I8MM
#define LEVEL_NAME "i8mm"
#include "level.h"
