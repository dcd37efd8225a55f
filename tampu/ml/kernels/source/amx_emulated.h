/* The instructions of amx.h in plain C: so the kernels that use them are tested on any processor. */

static _Thread_local uint32_t REGISTERS[8][16][16];
static _Thread_local int IS_CONFIGURED;

INLINE void tiles_begin(void)
{
    memset(REGISTERS, 0, sizeof REGISTERS);
    IS_CONFIGURED = 1;
}
INLINE void tiles_end(void) { IS_CONFIGURED = 0; }

/* A processor raises an exception too. */
INLINE void require_tiles(void)
{
    if (!IS_CONFIGURED)
        __builtin_trap();
}

static inline void tile_zero(int t)
{
    require_tiles();
    memset(REGISTERS[t], 0, sizeof REGISTERS[t]);
}
static inline void tile_load(int t, const void *from, int64_t stride)
{
    require_tiles();
    for (int row = 0; row < 16; row++)
        memcpy(REGISTERS[t][row], (const char *)from + row * stride, 64);
}
static inline void tile_store(int t, void *to, int64_t stride)
{
    require_tiles();
    for (int row = 0; row < 16; row++)
        memcpy((char *)to + row * stride, REGISTERS[t][row], 64);
}

/* A BF16 as a float; subnormal ones are zeros to the processor. */
INLINE float brain_value(uint32_t bits)
{
    float value;
    bits = bits & 0x7f80 ? bits << 16 : bits << 16 & 0x80000000u;
    memcpy(&value, &bits, 4);
    return value;
}
static inline void tile_dot_bf16(int sums, int a, int b)
{
    require_tiles();
    for (int row = 0; row < 16; row++)
        for (int column = 0; column < 16; column++) {
            float even = 0.0f, odd = 0.0f, sum;
            for (int k = 0; k < 16; k++) {
                const uint32_t x = REGISTERS[a][row][k], w = REGISTERS[b][k][column];
                even = fmaf(brain_value(x & 0xffff), brain_value(w & 0xffff), even);
                odd = fmaf(brain_value(x >> 16), brain_value(w >> 16), odd);
            }
            memcpy(&sum, &REGISTERS[sums][row][column], 4);
            sum += even + odd;
            memcpy(&REGISTERS[sums][row][column], &sum, 4);
        }
}
static inline void tile_dot_int8(int sums, int a, int b)
{
    require_tiles();
    for (int row = 0; row < 16; row++)
        for (int column = 0; column < 16; column++)
            for (int k = 0; k < 16; k++)
                for (int t = 0; t < 4; t++)
                    REGISTERS[sums][row][column] += (uint32_t)((int8_t)(REGISTERS[a][row][k] >> (8 * t))
                                                           * (int8_t)(REGISTERS[b][k][column] >> (8 * t)));
}
