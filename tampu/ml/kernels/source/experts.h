/* Products with the matrices of experts, of which each token uses a few.
 *
 * A row is one token for one of its experts. Rows are put in the order of their experts, those of one
 * expert into panels of their own; behind the header, a plan says which rows are whose. So each expert
 * that has rows multiplies them as if they were all there is, and the others are not read. */

#define SHARED 16 /* rows of one token that are written while its input is at hand */

/* Parameters behind ggml's own: the type of the weights, how many experts there are, and for a product
 * the number of its counter, how weights are read and how many of them stay in the second cache. */
struct experts_params {
    int32_t type;
    int32_t experts;
    int32_t counter;
    struct fetch fetch;
    int32_t chunk_bytes;
};

struct plan {
    int32_t *begins;  /* the first row of each expert, and the end of the last one's */
    int32_t *used;    /* the experts that have rows: `activations.panels` of them */
    int32_t *results; /* for each row: where in the result it belongs */
    uint8_t *panels;
};

INLINE struct plan plan_of(struct activations *x, int64_t experts, int64_t rows)
{
    int32_t *words = (int32_t *)(x + 1);
    return (struct plan){words, words + experts + 1, words + 2 * experts + 1,
                         (uint8_t *)words + plan_bytes(experts, rows)};
}

INLINE int32_t chosen_by(const struct tensor *choice, int64_t token, int64_t index)
{
    const char *row = (const char *)choice->data + token * choice->nb[1];
    return *(const int32_t *)(row + index * choice->nb[0]);
}

/* Where the rows of each expert begin. */
static void count_rows(const struct tensor *choice, int32_t experts, int32_t *begins)
{
    memset(begins, 0, (size_t)(experts + 1) * sizeof *begins);
    for (int64_t token = 0; token < choice->ne[1]; token++)
        for (int64_t k = 0; k < choice->ne[0]; k++)
            begins[chosen_by(choice, token, k) + 1]++;
    for (int32_t e = 0; e < experts; e++)
        begins[e + 1] += begins[e];
}

static void write_plan(struct activations *to, struct plan plan, const int32_t *begins, int32_t experts,
                       int64_t inputs)
{
    int32_t used = 0;
    memcpy(plan.begins, begins, (size_t)(experts + 1) * sizeof *begins);
    for (int32_t e = 0; e < experts; e++)
        if (begins[e] < begins[e + 1])
            plan.used[used++] = e;
    prepare(to, used, inputs);
}

/* Where one row of packed activations goes. */
struct spot {
    uint8_t *panel;
    const float *input;
    struct place place;
};

INLINE void copy_block(const uint8_t *block, uint8_t *to, int32_t column, int32_t n)
{
    memcpy(to + BLOCK * column, block, BLOCK);
    for (int part = 0; part < 4; part++)
        memcpy(to + BLOCK * n + 4 * (part * n + column), block + BLOCK + 4 * part, 4);
}

/* Blocks `first` to `last` (groups, of floats) of rows of one token; those that share an input quantise it once. */
static void put_quantised(const struct spot *spots, int count, int64_t first, int64_t last)
{
    uint8_t block[QUANTISED_BLOCK];
    for (int64_t b = first; b < last; b++)
        for (int i = 0; i < count; i++) {
            const struct place place = spots[i].place;
            if (i == 0 || spots[i].input != spots[i - 1].input)
                quantise_block(spots[i].input + BLOCK * b, block, 0, 1);
            copy_block(block, spots[i].panel + b * QUANTISED_BLOCK * place.width, place.column,
                       place.width);
        }
}

static void put_rows(int type, const struct spot *spots, int count, int64_t first, int64_t last, int64_t inputs)
{
    const int block = activation_block(type);
    if (block == BLOCK) {
        put_quantised(spots, count, first, last);
        return;
    }
    for (int i = 0; i < count; i++)
        put_row(type, spots[i].input, spots[i].panel, spots[i].place, block * first, block * last,
                inputs);
}

/* dst: bytes for the activations; src[0]: F32 (tokens, used or 1, inputs); src[1]: I32 (tokens, used),
 * each entry the number of an expert. */
static void group(struct tensor *dst, int thread, int threads, void *user)
{
    struct experts_params params;
    memcpy(&params, dst->op_params + OWN_PARAMS, sizeof params);
    const struct tensor *x = dst->src[0], *choice = dst->src[1];
    const int is_shared = x->ne[1] == 1;
    const int64_t inputs = x->ne[0];
    const int64_t blocks = inputs / activation_block(params.type);
    const int64_t used = choice->ne[0], all = choice->ne[1] * blocks;
    const int32_t columns = columns_of(params.type);
    const int64_t row_bytes = activation_row_bytes(params.type, inputs);
    const struct plan plan = plan_of(dst->data, params.experts, used * choice->ne[1]);
    int32_t begins[MOST_EXPERTS + 1], next[MOST_EXPERTS];
    struct spot spots[SHARED];
    (void)user;
    count_rows(choice, params.experts, begins);
    memcpy(next, begins, (size_t)params.experts * sizeof *next);
    if (thread == 0)
        write_plan(dst->data, plan, begins, params.experts, inputs);
    const int64_t begin = all * thread / threads, end = all * (thread + 1) / threads;
    for (int64_t token = 0; token * blocks < end; token++) {
        int64_t first = begin - token * blocks, last = end - token * blocks;
        first = first > 0 ? first : 0;
        last = last < blocks ? last : blocks;
        int count = 0;
        for (int64_t k = 0; k < used; k++) {
            const int32_t e = chosen_by(choice, token, k), row = next[e]++;
            if (first >= last)
                continue; /* another thread's token: only its rows are counted */
            const int64_t rows = begins[e + 1] - begins[e];
            const struct place place = place_of(row - begins[e], rows, panel_count(rows, columns));
            if (first == 0)
                plan.results[row] = (int32_t)(token * used + k);
            spots[count++] = (struct spot){plan.panels + (begins[e] + place.first) * row_bytes,
                                           row_of(x, is_shared ? token : token * used + k), place};
            if (count == SHARED || k == used - 1) {
                put_rows(params.type, spots, count, first, last, inputs);
                count = 0;
            }
        }
    }
}

/* Rows of a tile to where they belong. */
INLINE void scatter_tile(const float *tile, int64_t tile_rows, const int32_t *results, int64_t width,
                         float *out, int64_t stride, int rows)
{
    for (int64_t c = 0; c < width; c++) {
        float *to = out + results[c] * stride;
        if (rows == ROWS)
            vf_store(to, vf_load(tile + tile_rows * c));
        else
            memcpy(to, tile + tile_rows * c, (size_t)rows * sizeof *to);
    }
}

/* dst: F32 (tokens, used, rows); src[0]: strips of each expert's weights; src[1]: grouped activations. */
static void product_each(struct tensor *dst, int thread, int threads, void *user)
{
    struct experts_params params;
    memcpy(&params, dst->op_params + OWN_PARAMS, sizeof params);
    struct activations *x = dst->src[1]->data;
    const struct plan plan = plan_of(x, params.experts, dst->ne[1] * dst->ne[2]);
    const int64_t rows = dst->ne[0], strips = (rows + ROWS - 1) / ROWS, inputs = x->inputs;
    const size_t strip_bytes = strip_bytes_of(params.type, inputs);
    const int64_t row_bytes = activation_row_bytes(params.type, inputs);
    const int64_t mean = (dst->ne[1] * dst->ne[2] + x->panels - 1) / (x->panels ? x->panels : 1);
    const size_t chunk_bytes = chunk_bytes_of(params.chunk_bytes);
    const struct share share = share_of(strips, x->panels, mean, strip_bytes, threads, params.fetch, chunk_bytes);
    const int64_t chunk = share.chunk;
    const int64_t chunks = (strips + chunk - 1) / chunk;
    tile *const *tiles = tiles_of(params.type);
    float results[STREAMS * FEW * ROWS + FLOAT_COLUMNS * ROWS];
    (void)thread;
    (void)user;
    for (;;) {
        int64_t task = __atomic_fetch_add(&x->counters[params.counter], 1, __ATOMIC_RELAXED);
        if (task >= chunks * x->panels)
            return;
        const int32_t e = plan.used[task / chunks], begin = plan.begins[e];
        const int64_t tokens = plan.begins[e + 1] - begin;
        const int32_t panels = panel_count(tokens, columns_of(params.type));
        const uint8_t *weights = (const uint8_t *)dst->src[0]->data + e * strips * strip_bytes;
        const int64_t first = task % chunks * chunk;
        const int64_t last = first + chunk < strips ? first + chunk : strips;
        for (int32_t p = 0; p < panels; p++) {
            const int64_t row = begin + panel_begin(tokens, panels, p);
            const int64_t width = begin + panel_begin(tokens, panels, p + 1) - row;
            const int64_t streams = width <= FEW ? share.streams : 1;
            for (int64_t s = first; s < last; s += streams) {
                const int64_t end = s + streams < last ? s + streams : last;
                const int all = (int)(end - s) * ROWS, left = rows - s * ROWS < all ? (int)(rows - s * ROWS) : all;
                tiles[width - 1](weights + s * strip_bytes, NULL, plan.panels + row * row_bytes, inputs,
                                 results, all, left, params.fetch);
                scatter_tile(results, all, plan.results + row, width, (float *)dst->data + s * ROWS, rows,
                             left);
            }
        }
    }
}
