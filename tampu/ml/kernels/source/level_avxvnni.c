#define LANES "lanes_avxvnni.h"
#define LEVEL LEVEL_AVXVNNI
#define LEVEL_NAME "avxvnni"
#include "level.h"
