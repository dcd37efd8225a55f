/* Attention's two products by tiles of AMX, where there are many rows.
 *
 * Each number is multiplied as the sum of two BF16, itself rounded and what the rounding took away, without the
 * product of both rests. That is sixteen bits: more than keys and values in halves or bytes have, but not what a
 * cache of floats is asked for; those are multiplied as floats. */

enum {
    ATTENTION_LEAST = 32, /* rows for a key-value head */
    MAX_BLOCKS = MAX_FEATURES / TILE_INPUTS,
    QUERY_TILES = MAX_WIDE / 16 / TILE_INPUTS + BLOCK_ROWS / 16, /* the last block of each may not be full */
    CELL_BLOCKS = CELLS / TILE_INPUTS,
};

struct attention_tiles {
    _Alignas(64) uint8_t queries[2][QUERY_TILES][TILE_BYTES]; /* blocks of sixteen rows, after those of the rows before */
    uint8_t keys[2][MAX_BLOCKS][VECTORS][TILE_BYTES];
    uint8_t values[2][MAX_FEATURES / 16][CELL_BLOCKS][TILE_BYTES];
    uint8_t weights[2][CELL_BLOCKS][TILE_BYTES];
};

INLINE int attends_by_tiles(int64_t rows) { return rows >= ATTENTION_LEAST; }

/* Pairs of two numbers of sixteen lanes to a row of a tile, and what their rounding took to another's. */
INLINE void put_pairs(vf even, vf odd, uint8_t *to, uint8_t *rest)
{
    const vi pairs = vi_brain_pairs(even, odd);
    vi_store(to, pairs);
    vi_store(rest, vi_brain_pairs(vf_sub(even, vf_as_float(vi_left(pairs, 16))),
                                  vf_sub(odd, vf_as_float(vi_and(pairs, vi_splat((int32_t)0xffff0000))))));
}

/* 32 numbers in order to a row of a tile, and their rests to another's. */
INLINE void put_split(vf first, vf second, uint8_t *to, uint8_t *rest)
{
    vf_store_brain(to, first, second);
    vf_store_brain(rest, vf_sub(first, vf_load_brain(to)), vf_sub(second, vf_load_brain(to + 32)));
}

/* Blocks of a row of some features. */
INLINE int64_t blocks_of(int64_t features) { return up_to_multiple(features, TILE_INPUTS) / TILE_INPUTS; }

/* The queries of all rows of a task. */
static void tile_queries(struct attention_tiles *t, const float *const *queries, int rows, int64_t features)
{
    for (int row = 0; row < rows; row++)
        for (int64_t f = 0; f < features; f += TILE_INPUTS) {
            float some[TILE_INPUTS] = {0};
            const int64_t left = features - f < TILE_INPUTS ? features - f : TILE_INPUTS;
            memcpy(some, queries[row] + f, (size_t)left * sizeof *some);
            const int64_t block = row / 16 * blocks_of(features) + f / TILE_INPUTS;
            put_split(vf_load(some), vf_load(some + 16), t->queries[0][block] + row % 16 * 64,
                      t->queries[1][block] + row % 16 * 64);
        }
}

/* A tile's keys: pairs of features of sixteen cells. `keys` has padded features. */
static void tile_keys(struct attention_tiles *t, const float *keys, int64_t features)
{
    for (int64_t f = 0; f < up_to_multiple(features, TILE_INPUTS); f += 2)
        for (int i = 0; i < VECTORS; i++) {
            const int is_there = f < padded(features);
            const float *at = keys + f * CELLS + 16 * i;
            const size_t to = (size_t)(f % TILE_INPUTS / 2 * 64);
            put_pairs(is_there ? vf_load(at) : vf_zero(), is_there ? vf_load(at + CELLS) : vf_zero(),
                      t->keys[0][f / TILE_INPUTS][i] + to, t->keys[1][f / TILE_INPUTS][i] + to);
        }
}

/* A tile's values: pairs of cells of sixteen features. */
static void tile_values(struct attention_tiles *t, const float *values, int64_t features)
{
    for (int cell = 0; cell < CELLS; cell += 2)
        for (int64_t f = 0; f < features; f += 16) {
            const float *at = values + cell * features + f;
            const size_t to = (size_t)(cell % TILE_INPUTS / 2 * 64);
            put_pairs(vf_load(at), vf_load(at + features), t->values[0][f / 16][cell / TILE_INPUTS] + to,
                      t->values[1][f / 16][cell / TILE_INPUTS] + to);
        }
}

/* Scores of sixteen rows with all cells of a tile. */
static void score_tiles(const struct attention_tiles *t, int group, int64_t features, float *scores)
{
    zero_sums();
    for (int64_t b = 0; b < blocks_of(features); b++)
        for (int part = 0; part < 3; part++) { /* both rounded, the queries' rests, the keys' */
            tile_load(4, t->queries[part == 1][group * blocks_of(features) + b], 64);
            tile_load(5, t->keys[part == 2][b][0], 64);
            tile_dot_bf16(0, 4, 5);
            tile_load(6, t->keys[part == 2][b][1], 64);
            tile_dot_bf16(1, 4, 6);
            tile_load(7, t->keys[part == 2][b][2], 64);
            tile_dot_bf16(2, 4, 7);
            tile_load(5, t->keys[part == 2][b][3], 64);
            tile_dot_bf16(3, 4, 5);
        }
    tile_store(0, scores, 4 * CELLS);
    tile_store(1, scores + 16, 4 * CELLS);
    tile_store(2, scores + 32, 4 * CELLS);
    tile_store(3, scores + 48, 4 * CELLS);
}

/* Add a tile's values, as sixteen rows weigh them, to 32 features (or sixteen) of their results. */
INLINE void mix_two(const struct attention_tiles *t, int64_t first, int both, float *result, int64_t features)
{
    tile_load(0, result, 4 * features);
    if (both)
        tile_load(1, result + 16, 4 * features);
    for (int b = 0; b < CELL_BLOCKS; b++)
        for (int part = 0; part < 3; part++) {
            tile_load(4, t->weights[part == 1][b], 64);
            tile_load(5, t->values[part == 2][first][b], 64);
            tile_dot_bf16(0, 4, 5);
            if (both) {
                tile_load(6, t->values[part == 2][first + 1][b], 64);
                tile_dot_bf16(1, 4, 6);
            }
        }
    tile_store(0, result, 4 * features);
    if (both)
        tile_store(1, result + 16, 4 * features);
}

/* The same for all features; `weights` are those of sixteen rows. */
static void mix_tiles(struct attention_tiles *t, const float *weights, int64_t features, float *result)
{
    for (int row = 0; row < 16; row++)
        for (int b = 0; b < CELL_BLOCKS; b++) {
            const float *at = weights + row * CELLS + b * TILE_INPUTS;
            put_split(vf_load(at), vf_load(at + 16), t->weights[0][b] + 64 * row, t->weights[1][b] + 64 * row);
        }
    for (int64_t f = 0; f < features; f += 32)
        mix_two(t, f / 16, features - f > 16, result + f, features);
}
