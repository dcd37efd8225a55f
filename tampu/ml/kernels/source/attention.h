/* Attention over a cached history, in tiles of cells (arXiv:2205.14135), in 32-bit floats.
 *
 * A task is one key-value head with a block of query rows: some tokens times the query heads of the
 * group. It turns each tile of keys and values into floats once and uses it for all its rows. A tile
 * that the mask hides from a token is left out for that token's rows, and not even read if it is hidden
 * from all of them.
 */

#define CELLS 64      /* cells */
#define BLOCK_ROWS 64 /* query rows of a task, at most */
#define MOST_FEATURES 256
#define VECTORS (CELLS / 16)

static const uint16_t HALF_HIDDEN = 0xfc00; /* minus infinity */

/* e^x with an error of about one unit in the last place; at least e^-87. */
INLINE vf vf_exp(vf x)
{
    x = vf_min(vf_splat(88.0f), vf_max(vf_splat(-87.0f), x));
    vi n = vf_to_int(vf_mul(x, vf_splat(1.44269504f)));
    vf whole = vf_from_int(n);
    vf r = vf_fma(whole, vf_splat(-0.693359375f), x);
    r = vf_fma(whole, vf_splat(2.12194440e-4f), r);
    vf y = vf_splat(1.9875691500e-4f);
    y = vf_fma(y, r, vf_splat(1.3981999507e-3f));
    y = vf_fma(y, r, vf_splat(8.3334519073e-3f));
    y = vf_fma(y, r, vf_splat(4.1665795894e-2f));
    y = vf_fma(y, r, vf_splat(1.6666665459e-1f));
    y = vf_fma(y, r, vf_splat(5.0000001201e-1f));
    y = vf_add(vf_fma(y, vf_mul(r, r), r), vf_splat(1.0f));
    return vf_mul(y, vf_as_float(vi_left(vi_add(n, vi_splat(127)), 23)));
}

/* cap tanh(x / cap) */
INLINE vf vf_capped(vf x, float cap)
{
    vf e = vf_exp(vf_mul(x, vf_splat(2.0f / cap)));
    vf one = vf_splat(1.0f);
    return vf_mul(vf_splat(cap), vf_div(vf_sub(e, one), vf_add(e, one)));
}

/* What the operation is asked for. */
struct attention {
    const struct tensor *q, *k, *v, *mask, *sinks;
    int64_t tokens, history, heads, kv_heads, features, value_features;
    float scale, cap;
    float *out;
};

/* Parameters behind ggml's own. */
struct attention_params {
    float scale;
    float cap; /* 0: none */
    int32_t has_mask;
    int32_t has_sinks;
};

/* One task's memory. */
struct work {
    float rows_read[CELLS * MOST_FEATURES];     /* keys or values as they lie in the cache */
    float keys[MOST_FEATURES * CELLS];          /* turned, one feature after the other */
    float weights[BLOCK_ROWS * CELLS];          /* scores, then what they weigh */
    float result[BLOCK_ROWS * MOST_FEATURES];  /* not yet divided by `total` */
    float highest[BLOCK_ROWS], total[BLOCK_ROWS];
    const float *queries[BLOCK_ROWS];
    const uint8_t *masks[BLOCK_ROWS];
    int active[BLOCK_ROWS];
};

INLINE void read_row(int type, const uint8_t *from, int64_t features, float *to)
{
    for (int64_t f = 0; f < features; f += type == TYPE_Q8_0 ? BLOCK : 16, to += 16) {
        if (type == TYPE_F16) {
            vf_store(to, vf_load_half(from + 2 * f));
        } else if (type == TYPE_F32) {
            vf_store(to, vf_load((const float *)(const void *)(from + 4 * f)));
        } else {
            const uint8_t *block = from + f / BLOCK * 34;
            vf scale = vf_splat(half_value(block));
            vf_store(to, vf_mul(scale, vf_from_int(vi_load_i8(block + 2))));
            vf_store(to + 16, vf_mul(scale, vf_from_int(vi_load_i8(block + 18))));
            to += 16;
        }
    }
}

/* Turn `cells` rows from a cell on into floats; what is missing from a whole tile becomes zeros. */
static void read_rows(const struct tensor *from, int64_t head, int64_t cell, int64_t cells,
                      int64_t features, float *to)
{
    const uint8_t *at = (const uint8_t *)from->data + head * from->nb[2] + cell * from->nb[1];
    for (int64_t i = 0; i < cells; i++, at += from->nb[1], to += features) {
        if (from->type == TYPE_F16)
            read_row(TYPE_F16, at, features, to);
        else if (from->type == TYPE_F32)
            read_row(TYPE_F32, at, features, to);
        else
            read_row(TYPE_Q8_0, at, features, to);
    }
    memset(to, 0, (size_t)((CELLS - cells) * features) * sizeof *to);
}

static void prefetch_rows(const struct tensor *from, int64_t head, int64_t cell, int64_t cells)
{
    const uint8_t *at = (const uint8_t *)from->data + head * from->nb[2] + cell * from->nb[1];
    const size_t bytes = from->nb[1] / (size_t)(from->ne[2] > 0 ? from->ne[2] : 1);
    for (int64_t i = 0; i < cells; i++, at += from->nb[1])
        for (size_t b = 0; b < bytes; b += 64)
            __builtin_prefetch(at + b);
}

/* Scores of N rows with all cells of a tile. */
INLINE void score_rows(int n, struct work *w, const int *rows, int64_t features)
{
    vf sum[SCORE_ROWS][VECTORS];
    UNROLL for (int r = 0; r < n; r++)
        UNROLL for (int i = 0; i < VECTORS; i++) sum[r][i] = vf_zero();
    const float *keys = w->keys;
    for (int64_t f = 0; f < features; f++, keys += CELLS) {
        vf key[VECTORS];
        UNROLL for (int i = 0; i < VECTORS; i++) key[i] = vf_load(keys + 16 * i);
        UNROLL for (int r = 0; r < n; r++)
        {
            vf query = vf_splat(w->queries[rows[r]][f]);
            UNROLL for (int i = 0; i < VECTORS; i++) sum[r][i] = vf_fma(query, key[i], sum[r][i]);
        }
    }
    UNROLL for (int r = 0; r < n; r++)
        UNROLL for (int i = 0; i < VECTORS; i++)
            vf_store(w->weights + rows[r] * CELLS + 16 * i, sum[r][i]);
}

/* Add a tile's values, as N rows weigh them, to 64 features (or fewer) of their results. */
INLINE void mix_rows(int n, int vectors, struct work *w, const int *rows, int64_t features, int64_t from)
{
    vf sum[SCORE_ROWS][VECTORS];
    UNROLL for (int r = 0; r < n; r++)
        UNROLL for (int i = 0; i < vectors; i++)
            sum[r][i] = vf_load(w->result + rows[r] * MOST_FEATURES + from + 16 * i);
    const float *values = w->rows_read + from;
    for (int cell = 0; cell < CELLS; cell++, values += features) {
        vf value[VECTORS];
        UNROLL for (int i = 0; i < vectors; i++) value[i] = vf_load(values + 16 * i);
        UNROLL for (int r = 0; r < n; r++)
        {
            vf weight = vf_splat(w->weights[rows[r] * CELLS + cell]);
            UNROLL for (int i = 0; i < vectors; i++) sum[r][i] = vf_fma(weight, value[i], sum[r][i]);
        }
    }
    UNROLL for (int r = 0; r < n; r++)
        UNROLL for (int i = 0; i < vectors; i++)
            vf_store(w->result + rows[r] * MOST_FEATURES + from + 16 * i, sum[r][i]);
}

#if SCORE_ROWS == 6
#define FOR_ROWS(M) M(1) M(2) M(3) M(4) M(5) M(6)
#else
#define FOR_ROWS(M) M(1)
#endif

#define ROW_FUNCTIONS(n)                                                                             \
    static void score_##n(struct work *w, const int *rows, int64_t features)                         \
    {                                                                                                \
        score_rows(n, w, rows, features);                                                            \
    }                                                                                                \
    static void mix_##n(struct work *w, const int *rows, int64_t features)                           \
    {                                                                                                \
        int64_t from = 0;                                                                            \
        for (; from + 64 <= features; from += 64)                                                    \
            mix_rows(n, 4, w, rows, features, from);                                                 \
        for (; from < features; from += 16)                                                          \
            mix_rows(n, 1, w, rows, features, from);                                                 \
    }
#define SCORE_NAME(n) score_##n,
#define MIX_NAME(n) mix_##n,
FOR_ROWS(ROW_FUNCTIONS)

typedef void row_function(struct work *w, const int *rows, int64_t features);
static row_function *const SCORES[] = {FOR_ROWS(SCORE_NAME)};
static row_function *const MIXES[] = {FOR_ROWS(MIX_NAME)};

static void for_rows(row_function *const *functions, struct work *w, int count, int64_t features)
{
    for (int first = 0; first < count;) {
        int parts = (count - first + SCORE_ROWS - 1) / SCORE_ROWS;
        int n = (count - first) / parts;
        functions[n - 1](w, w->active + first, features);
        first += n;
    }
}

/* The mask of sixteen cells from `first` on, of which some are not there: they are hidden. */
static vf mask_of_last(const uint8_t *mask, int first, int64_t cells)
{
    uint16_t sixteen[16];
    for (int i = 0; i < 16; i++) {
        sixteen[i] = first + i < cells ? 0 : HALF_HIDDEN;
        if (mask && first + i < cells)
            memcpy(&sixteen[i], mask + 2 * (first + i), 2);
    }
    return vf_load_half((const uint8_t *)sixteen);
}

/* Turn a row's scores into weights, relative to the highest score so far. */
static void weigh(const struct attention *a, struct work *w, int row, int64_t cell, int64_t cells)
{
    float *scores = w->weights + row * CELLS;
    const uint8_t *mask = w->masks[row] ? w->masks[row] + 2 * cell : NULL;
    vf x[VECTORS], highest = vf_splat(w->highest[row]), total = vf_zero();
    for (int i = 0; i < VECTORS; i++) {
        x[i] = vf_mul(vf_load(scores + 16 * i), vf_splat(a->scale));
        if (a->cap > 0.0f)
            x[i] = vf_capped(x[i], a->cap);
        if (16 * (i + 1) > cells)
            x[i] = vf_add(x[i], mask_of_last(mask, 16 * i, cells));
        else if (mask)
            x[i] = vf_add(x[i], vf_load_half(mask + 32 * i));
        highest = vf_max(x[i], highest);
    }
    float top = vf_highest(highest);
    if (top == -INFINITY) { /* nothing to see yet, or what is to see is no number */
        for (int i = 0; i < VECTORS; i++)
            total = vf_add(total, x[i]);
        if (isnan(vf_total(total)))
            w->total[row] = NAN;
        memset(scores, 0, CELLS * sizeof *scores);
        return;
    }
    for (int i = 0; i < VECTORS; i++) {
        x[i] = vf_exp(vf_sub(x[i], vf_splat(top)));
        total = vf_add(total, x[i]);
        vf_store(scores + 16 * i, x[i]);
    }
    if (top > w->highest[row]) {
        float shrink = expf(w->highest[row] - top), *result = w->result + row * MOST_FEATURES;
        for (int64_t f = 0; f < a->value_features; f += 16)
            vf_store(result + f, vf_mul(vf_load(result + f), vf_splat(shrink)));
        w->total[row] *= shrink;
        w->highest[row] = top;
    }
    w->total[row] += vf_total(total);
}

/* List the rows that see any cell of a tile; rows of one token share their mask. */
static int find_active(struct work *w, int rows, int64_t cell, int64_t cells)
{
    uint16_t hidden[CELLS];
    int count = 0, is_visible = 1;
    for (int i = 0; i < CELLS; i++)
        hidden[i] = HALF_HIDDEN;
    for (int row = 0; row < rows; row++) {
        if (w->masks[row] && (row == 0 || w->masks[row] != w->masks[row - 1]))
            is_visible = memcmp(w->masks[row] + 2 * cell, hidden, (size_t)cells * 2) != 0;
        if (is_visible)
            w->active[count++] = row;
    }
    return count;
}

/* One key-value head, query heads `first_head` to `last_head`, tokens `first` to `last`. */
static void attend(const struct attention *a, struct work *w, int64_t kv_head, int64_t first_head,
                   int64_t last_head, int64_t first, int64_t last)
{
    int rows = 0;
    for (int64_t t = first; t < last; t++)
        for (int64_t h = first_head; h < last_head; h++, rows++) {
            const uint8_t *q = (const uint8_t *)a->q->data + t * a->q->nb[1] + h * a->q->nb[2];
            w->queries[rows] = (const float *)(const void *)q;
            w->masks[rows] = a->mask ? (const uint8_t *)a->mask->data + t * a->mask->nb[1] : NULL;
            w->highest[rows] = a->sinks ? ((const float *)a->sinks->data)[h] : -INFINITY;
            w->total[rows] = a->sinks ? 1.0f : 0.0f;
            memset(w->result + rows * MOST_FEATURES, 0, (size_t)a->value_features * sizeof(float));
        }
    for (int64_t cell = 0; cell < a->history; cell += CELLS) {
        int64_t cells = a->history - cell < CELLS ? a->history - cell : CELLS;
        int count = find_active(w, rows, cell, cells);
        if (count == 0)
            continue;
        prefetch_rows(a->v, kv_head, cell, cells);
        read_rows(a->k, kv_head, cell, cells, a->features, w->rows_read);
        for (int64_t i = 0; i < CELLS; i += 4)
            for (int64_t f = 0; f < a->features; f += 4)
                transpose_four(w->rows_read + i * a->features + f, (size_t)a->features,
                               w->keys + f * CELLS + i, CELLS);
        for_rows(SCORES, w, count, a->features);
        if (cell + 2 * CELLS <= a->history)
            prefetch_rows(a->k, kv_head, cell + CELLS, CELLS);
        for (int i = 0; i < count; i++)
            weigh(a, w, w->active[i], cell, cells);
        read_rows(a->v, kv_head, cell, cells, a->value_features, w->rows_read);
        for_rows(MIXES, w, count, a->value_features);
    }
    rows = 0;
    for (int64_t t = first; t < last; t++)
        for (int64_t h = first_head; h < last_head; h++, rows++) {
            float *out = a->out + (t * a->heads + h) * a->value_features;
            vf share = vf_splat(w->total[rows] != 0.0f ? 1.0f / w->total[rows] : 0.0f);
            for (int64_t f = 0; f < a->value_features; f += 16)
                vf_store(out + f, vf_mul(vf_load(w->result + rows * MOST_FEATURES + f), share));
        }
}

/* dst: F32 (tokens, heads, value features); src: queries (heads, tokens, features), keys and values
 * (kv heads, history, features), then the mask and the sinks if there are any. */
static void attention(struct tensor *dst, int thread, int threads, void *user)
{
    struct attention_params params;
    struct work work;
    (void)user;
    memcpy(&params, dst->op_params + OWN_PARAMS, sizeof params);
    const struct tensor *q = dst->src[0], *k = dst->src[1], *v = dst->src[2];
    struct attention a = {
        .q = q, .k = k, .v = v,
        .mask = params.has_mask ? dst->src[3] : NULL,
        .sinks = params.has_sinks ? dst->src[3 + (params.has_mask != 0)] : NULL,
        .tokens = q->ne[1], .history = k->ne[1], .heads = q->ne[2], .kv_heads = k->ne[2],
        .features = k->ne[0], .value_features = v->ne[0],
        .scale = params.scale, .cap = params.cap, .out = dst->data,
    };
    const int64_t group = a.heads / a.kv_heads;
    int64_t parts = (group + BLOCK_ROWS - 1) / BLOCK_ROWS; /* of a group */
    while (a.kv_heads * parts * a.tokens < threads && parts < group)
        parts++;
    const int64_t heads = (group + parts - 1) / parts;
    const int64_t block = BLOCK_ROWS / heads;
    const int64_t blocks = (a.tokens + block - 1) / block, tasks = a.kv_heads * parts * blocks;
    for (int64_t task = thread; task < tasks; task += threads) {
        int64_t kv_head = task / parts % a.kv_heads, part = task % parts, b = task / parts / a.kv_heads;
        int64_t first_head = kv_head * group + part * heads;
        int64_t last_head = part + 1 < parts ? first_head + heads : (kv_head + 1) * group;
        int64_t last = (b + 1) * block < a.tokens ? (b + 1) * block : a.tokens;
        if (first_head < last_head)
            attend(&a, &work, kv_head, first_head, last_head, b * block, last);
    }
}
