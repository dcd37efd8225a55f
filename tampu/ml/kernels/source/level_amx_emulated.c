#define HAS_AMX
#define TILES "amx_emulated.h"
#define LANES "lanes_portable.h"
#define LEVEL LEVEL_AMX_EMULATED
#define LEVEL_NAME "amx_emulated"
#include "level.h"
