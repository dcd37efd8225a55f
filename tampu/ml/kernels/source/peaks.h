/* What the processor can do at most, measured: nothing but products in registers, nothing but reading. */

#define CHAINS 8 /* of operations that do not wait for each other */

/* Return how many operations (a product and a sum are two) this many rounds took. */
static double integer_peak(int64_t rounds)
{
    static const int8_t FOUR[4] = {1, 2, 3, 4};
    vi weights = vi_opaque(vi_splat8(3)), sums[CHAINS];
    UNROLL for (int i = 0; i < CHAINS; i++) sums[i] = vi_splat(i);
    for (int64_t round = 0; round < rounds; round++)
        UNROLL for (int i = 0; i < CHAINS; i++) sums[i] = vi_opaque(vi_dot(sums[i], weights, FOUR));
    return (double)rounds * CHAINS * 128;
}

static double float_peak(int64_t rounds)
{
    vf factor = vf_opaque(vf_splat(0.5f)), sums[CHAINS];
    UNROLL for (int i = 0; i < CHAINS; i++) sums[i] = vf_splat((float)i);
    for (int64_t round = 0; round < rounds; round++)
        UNROLL for (int i = 0; i < CHAINS; i++)
            sums[i] = vf_opaque(vf_fma(sums[i], factor, factor));
    return (double)rounds * CHAINS * 32;
}

#if defined(HAS_WORDS)
static double word_peak(int64_t rounds)
{
    static const int16_t TWO[2] = {1, 2};
    vi weights = vi_opaque(vi_splat(3)), sums[CHAINS];
    UNROLL for (int i = 0; i < CHAINS; i++) sums[i] = vi_splat(i);
    for (int64_t round = 0; round < rounds; round++)
        UNROLL for (int i = 0; i < CHAINS; i++)
            sums[i] = vi_opaque(vi_dot_words(sums[i], weights, TWO));
    return (double)rounds * CHAINS * 64;
}
#else
#define word_peak NULL
#endif

#if defined(HAS_AMX)
/* Two tiles of operands on either side; they are read from memory because tiles that were never written are
 * multiplied faster. */
static void fill_tiles(uint8_t byte)
{
    uint8_t data[1024];
    memset(data, byte, sizeof data);
    tiles_begin();
    tile_load(4, data, 64);
    tile_load(5, data, 64);
    tile_load(6, data, 64);
    tile_load(7, data, 64);
}

#define TILE_ROUND 16 /* rounds of the other peaks for one of four products of tiles */

/* `inputs`: of a tile's row. */
#define TILE_PEAK(name, dot, byte, inputs)                                                           \
    static double name(int64_t rounds)                                                               \
    {                                                                                                \
        fill_tiles(byte);                                                                            \
        for (int64_t round = 0; round < rounds / TILE_ROUND; round++) {                              \
            dot(0, 4, 5);                                                                            \
            dot(1, 4, 6);                                                                            \
            dot(2, 7, 5);                                                                            \
            dot(3, 7, 6);                                                                            \
        }                                                                                            \
        tiles_end();                                                                                 \
        return (double)(rounds / TILE_ROUND) * 4 * 16 * 16 * (inputs)*2;                             \
    }
TILE_PEAK(brain_peak, tile_dot_bf16, 0x3f, 32)
TILE_PEAK(tile_peak, tile_dot_int8, 1, 64)
#else
#define tile_peak NULL
#endif

#if defined(HAS_AMX)
#elif defined(BRAIN_PRODUCTS)
static double brain_peak(int64_t rounds)
{
    vi weights = vi_opaque(vi_splat(0x3f003f00)); /* halves, as brain floats */
    vf sums[CHAINS];
    UNROLL for (int i = 0; i < CHAINS; i++) sums[i] = vf_splat((float)i);
    for (int64_t round = 0; round < rounds; round++)
        UNROLL for (int i = 0; i < CHAINS; i++)
            sums[i] = vf_opaque(vf_dot_pair(sums[i], weights, 0x3f003f00));
    return (double)rounds * CHAINS * 64;
}
#else
#define brain_peak NULL
#endif

#define PIECE (256 * 1024) /* bytes: what streams share lies as near together as a product's strips do */

/* Read memory from beginning to end, each piece of it in equal parts at once: a line of each in turn. */
static void read_all(const uint8_t *from, int64_t bytes, struct fetch fetch)
{
    vi sum = vi_splat(0);
    for (int64_t piece = 0; piece < bytes; piece += PIECE) {
        const int64_t size = bytes - piece < PIECE ? bytes - piece : PIECE, part = size / fetch.streams / 64 * 64;
        for (int64_t at = 0; at < part; at += 64)
            for (int i = 0; i < fetch.streams; i++) {
                const uint8_t *line = from + piece + i * part + at;
                prefetch(1, line, fetch);
                sum = vi_opaque(vi_add(sum, vi_load(line)));
            }
    }
}
