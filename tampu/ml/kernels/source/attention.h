/* Attention over a cached history, in tiles of cells (arXiv:2205.14135), in 32-bit floats.
 *
 * A task is one key-value head with a block of query rows: some tokens times the query heads of the
 * group. It turns each tile of keys and values into floats once and uses it for all its rows. A tile
 * that the mask hides from a token is left out for that token's rows, and not even read if it is hidden
 * from all of them.
 *
 * If the cells of each sequence are given in the order of its positions, tiles are of positions: a row's result
 * depends neither on where its cells are nor on what else is in the batch.
 */

#define CELLS 64      /* cells */
#define BLOCK_ROWS 256 /* query rows of a task, at most */
#define MIN_ROWS 64  /* as many as are worth turning a tile for */
#define MIN_TASKS 8  /* for each thread, so that none waits long for the others */
#define MAX_FEATURES 576 /* of latent attention: 512 and 64 rotated ones */
#define MAX_WIDE 73728 /* query rows times features of a task */
#define VECTORS (CELLS / 16)

static const uint16_t HALF_HIDDEN = 0xfc00; /* minus infinity */

#include "cache.h"
#include "exponential.h"
#if defined(HAS_AMX)
#include "attention_tiles.h"
#define SPARE_ROWS 15 /* behind the last row: what tiles of sixteen write there counts for nothing */
#else
#define SPARE_ROWS 0
#endif

/* What the operation is asked for. */
struct attention {
    const struct tensor *q, *k, *v, *mask, *sinks;
    const int32_t *cells;     /* at each position of each sequence, negative: none; NULL: positions are cells */
    const int32_t *sequences; /* of each token, if there are cells */
    int64_t tokens, history, heads, kv_heads, features, value_features;
    float scale, cap, max_bias;
    float least; /* what the exponential returns for minus infinity: hidden cells are to weigh nothing */
    float *out;
    int by_tiles; /* then a task has one key-value head */
};

#include "division.h"

/* Parameters behind ggml's own. */
struct attention_params {
    float scale;
    float cap; /* 0: none */
    float max_bias; /* of ALiBi; 0: none */
    int32_t has_mask;
    int32_t has_sinks;
    int32_t has_cells; /* then there is a mask */
};

/* One task's memory. */
struct work {
    float keys[MAX_FEATURES * CELLS];        /* one feature after the other */
    float values[CELLS * MAX_FEATURES];      /* one cell after the other */
    float weights[(BLOCK_ROWS + SPARE_ROWS) * CELLS]; /* scores, then what they weigh */
    float result[MAX_WIDE + SPARE_ROWS * MAX_FEATURES]; /* of padded rows, not yet divided by `total` */
    struct ahead keys_ahead, values_ahead;
    float highest[BLOCK_ROWS], total[BLOCK_ROWS];
    float slopes[BLOCK_ROWS]; /* what the mask is multiplied by */
    const float *queries[BLOCK_ROWS];
    const uint8_t *masks[BLOCK_ROWS];
    uint8_t copied[CELLS * MAX_FEATURES * 4]; /* rows of a tile that are not neighbours */
    int active[BLOCK_ROWS];
    int hides; /* whether the (one) row's hidden cells are to be zeros */
#if defined(HAS_AMX)
    struct attention_tiles tiles;
#endif
};

/* Scores of N rows with all cells of a tile. */
INLINE void score_rows(int n, struct work *w, const int *rows, int64_t features)
{
    vf sum[SCORE_ROWS][VECTORS];
    UNROLL for (int r = 0; r < n; r++)
        UNROLL for (int i = 0; i < VECTORS; i++) sum[r][i] = vf_zero();
    const float *keys = w->keys;
    for (int64_t f = 0; f < features; f++, keys += CELLS) {
        fetch_two(&w->keys_ahead);
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
            sum[r][i] = vf_load(w->result + rows[r] * features + from + 16 * i);
    const float *values = w->values + from;
    for (int cell = 0; cell < CELLS; cell++, values += features) {
        fetch_two(&w->values_ahead);
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
            vf_store(w->result + rows[r] * features + from + 16 * i, sum[r][i]);
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
    const vf slope = vf_splat(w->slopes[row]);
    vf x[VECTORS], highest = vf_splat(w->highest[row]), total = vf_zero();
    for (int i = 0; i < VECTORS; i++) {
        x[i] = vf_mul(vf_load(scores + 16 * i), vf_splat(a->scale));
        if (a->cap > 0.0f)
            x[i] = vf_capped(x[i], a->cap);
        if (16 * (i + 1) > cells)
            x[i] = vf_fma(mask_of_last(mask, 16 * i, cells), slope, x[i]);
        else if (mask)
            x[i] = vf_fma(vf_load_half(mask + 32 * i), slope, x[i]);
        highest = vf_max(x[i], highest);
    }
    float top = vf_highest(highest);
    if (top == -INFINITY) { /* nothing to see yet, or what is to see is NaN */
        for (int i = 0; i < VECTORS; i++)
            total = vf_add(total, x[i]);
        if (isnan(vf_total(total)))
            w->total[row] = NAN;
        memset(scores, 0, CELLS * sizeof *scores);
        return;
    }
    for (int i = 0; i < VECTORS; i++) {
        x[i] = vf_sub(vf_exp(vf_sub(x[i], vf_splat(top))), vf_splat(a->least));
        total = vf_add(total, x[i]);
        vf_store(scores + 16 * i, x[i]);
    }
    if (top > w->highest[row]) {
        float shrink = expf(w->highest[row] - top), *result = w->result + row * padded(a->value_features);
        for (int64_t f = 0; f < a->value_features; f += 16)
            vf_store(result + f, vf_mul(vf_load(result + f), vf_splat(shrink)));
        w->total[row] *= shrink;
        w->highest[row] = top;
    }
    w->total[row] += vf_total(total);
}

/* List the rows from `begin` to `end` that see any cell of a tile; a token's rows share their mask. */
static int find_active(struct work *w, int begin, int end, int64_t cell, int64_t cells)
{
    uint16_t hidden[CELLS];
    int count = 0, is_visible = 1;
    for (int i = 0; i < CELLS; i++)
        hidden[i] = HALF_HIDDEN;
    for (int row = begin; row < end; row++) {
        if (w->masks[row] && (row == begin || w->masks[row] != w->masks[row - 1]))
            is_visible = memcmp(w->masks[row] + 2 * cell, hidden, (size_t)cells * 2) != 0;
        if (is_visible)
            w->active[count++] = row;
    }
    return count;
}

/* What a task is about: the rows are its tokens times its query heads, one key-value head after another. */
struct task {
    int64_t kv_first, kv_last;       /* key-value heads */
    int64_t head_first, head_last;   /* of each group of query heads */
    int64_t token_first, token_last;
    int64_t sequence; /* of all of its tokens, where sequences have cells of their own */
};

INLINE int64_t rows_of(const struct task *t)
{
    return (t->head_last - t->head_first) * (t->token_last - t->token_first);
}

/* The token and the query head of row `row` of a key-value head's rows. */
INLINE void place_of_row(const struct attention *a, const struct task *t, int64_t kv_head, int64_t row,
                         int64_t *token, int64_t *head)
{
    const int64_t heads = t->head_last - t->head_first;
    *token = t->token_first + row / heads;
    *head = kv_head * (a->heads / a->kv_heads) + t->head_first + row % heads;
}

INLINE const float *query_of(const struct attention *a, int64_t token, int64_t head)
{
    const uint8_t *q = (const uint8_t *)a->q->data + token * a->q->nb[1] + head * a->q->nb[2];
    return (const float *)(const void *)q;
}

/* The slope of a head's ALiBi (arXiv:2108.12409): of 2^n heads, head h has 2^(-max_bias (h + 1) / 2^n);
 * those beyond have every second one of twice as many. */
static float slope_of(const struct attention *a, int64_t head)
{
    int64_t power = 1;
    if (a->max_bias <= 0.0f)
        return 1.0f;
    while (2 * power <= a->heads)
        power *= 2;
    return head < power ? exp2f(-a->max_bias * (float)(head + 1) / (float)power)
                        : exp2f(-a->max_bias * (float)(2 * (head - power) + 1) / (float)(2 * power));
}

static int has_finite_query(const struct attention *a, int64_t token, int64_t head)
{
    const float *query = query_of(a, token, head);
    float zero = 0.0f;
    for (int64_t f = 0; f < a->features; f++)
        zero += query[f] * 0.0f;
    return zero == 0.0f;
}

static void begin_rows(const struct attention *a, struct work *w, const struct task *task)
{
    int row = 0;
    for (int64_t kv_head = task->kv_first; kv_head < task->kv_last; kv_head++)
        for (int64_t i = 0; i < rows_of(task); i++, row++) {
            int64_t t, h;
            place_of_row(a, task, kv_head, i, &t, &h);
            w->queries[row] = query_of(a, t, h);
            w->masks[row] = a->mask ? (const uint8_t *)a->mask->data + t * a->mask->nb[1] : NULL;
            w->highest[row] = a->sinks ? ((const float *)a->sinks->data)[h] : -INFINITY;
            w->total[row] = a->sinks ? 1.0f : 0.0f;
            w->slopes[row] = slope_of(a, h);
            memset(w->result + row * padded(a->value_features), 0,
                   (size_t)padded(a->value_features) * sizeof(float));
        }
}

/* Write what came out; list the rows that hold a NaN, and return how many. */
static int end_rows(const struct attention *a, struct work *w, const struct task *task, int *spoilt)
{
    int row = 0, count = 0;
    for (int64_t kv_head = task->kv_first; kv_head < task->kv_last; kv_head++)
        for (int64_t i = 0; i < rows_of(task); i++, row++) {
            int64_t t, h;
            place_of_row(a, task, kv_head, i, &t, &h);
            float *out = a->out + (t * a->heads + h) * a->value_features;
            vf share = vf_splat(w->total[row] != 0.0f ? 1.0f / w->total[row] : 0.0f), zero = vf_zero();
            for (int64_t f = 0; f < a->value_features; f += 16) {
                vf mean = vf_mul(vf_load(w->result + row * padded(a->value_features) + f), share);
                zero = vf_fma(mean, vf_zero(), zero);
                if (a->value_features - f < 16)
                    vf_store_first(out + f, mean, (int)(a->value_features - f));
                else
                    vf_store(out + f, mean);
            }
            if (vf_total(zero) != 0.0f)
                spoilt[count++] = row;
        }
    return count;
}

#if defined(HAS_AMX)
/* The same by tiles of sixteen rows, of which some may not be active: their weights are zeros. */
static void attend_by_tiles(const struct attention *a, struct work *w, int count, int64_t cell, int64_t cells)
{
    tile_keys(&w->tiles, w->keys, a->features);
    tile_values(&w->tiles, w->values, padded(a->value_features));
    for (int next = 0; next < count;) {
        const int group = w->active[next] / 16, first = 16 * group;
        score_tiles(&w->tiles, group, a->features, w->weights + first * CELLS);
        for (int row = first; row < first + 16; row++)
            if (next < count && w->active[next] == row)
                weigh(a, w, w->active[next++], cell, cells);
            else
                memset(w->weights + row * CELLS, 0, CELLS * sizeof *w->weights);
        mix_tiles(&w->tiles, w->weights + first * CELLS, padded(a->value_features),
                  w->result + first * padded(a->value_features));
    }
}
#endif

INLINE const int32_t *cells_at(const struct attention *a, const struct task *task, int64_t position)
{
    return a->cells + task->sequence * a->history + position;
}

INLINE struct rows rows_at(const struct attention *a, struct work *w, const struct task *task,
                           const struct tensor *from, int64_t kv_head, int64_t cell, int64_t cells)
{
    if (a->cells)
        return gather_rows(from, kv_head, cells_at(a, task, cell), cells, w->copied);
    return (struct rows){row_of_cell(from, kv_head, cell), from->nb[1], cells, from->type};
}

/* One tile of one key-value head, for the rows in `active`. */
static void attend_tile(const struct attention *a, struct work *w, const struct task *task, int count,
                        int64_t kv_head, int64_t cell, int64_t cells)
{
    struct rows rows = rows_at(a, w, task, a->k, kv_head, cell, cells);
    turn_rows(&rows, a->features, w->keys);
    if (w->hides)
        blank_keys(w->masks[0], cell, cells, a->features, w->keys);
#if defined(HAS_AMX)
    if (a->by_tiles) {
        rows = rows_at(a, w, task, a->v, kv_head, cell, cells);
        read_rows(&rows, a->value_features, w->values);
        if (w->hides)
            blank_values(w->masks[0], cell, cells, a->value_features, w->values);
        attend_by_tiles(a, w, count, cell, cells);
        return;
    }
#endif
    for_rows(SCORES, w, count, a->features);
    for (int i = 0; i < count; i++)
        weigh(a, w, w->active[i], cell, cells);
    rows = rows_at(a, w, task, a->v, kv_head, cell, cells);
    read_rows(&rows, a->value_features, w->values);
    if (w->hides)
        blank_values(w->masks[0], cell, cells, a->value_features, w->values);
    for_rows(MIXES, w, count, padded(a->value_features));
}

INLINE int64_t tile_cells(const struct attention *a, int64_t cell)
{
    return a->history - cell < CELLS ? a->history - cell : CELLS;
}

/* The first tile from `cell` on that any of a task's rows sees; all heads have the same masks. */
static int64_t find_tile(const struct attention *a, struct work *w, int rows, int64_t cell)
{
    while (cell < a->history && find_active(w, 0, rows, cell, tile_cells(a, cell)) == 0)
        cell += CELLS;
    return cell;
}

/* While a head's tile is computed, as large a part of the next tile is fetched. */
static void look_ahead(const struct attention *a, struct work *w, const struct task *task, int64_t next,
                       int64_t head)
{
    const int64_t heads = task->kv_last - task->kv_first;
    struct run run = {next, next < a->history ? tile_cells(a, next) : 0};
    if (a->cells && run.count)
        run = find_run(cells_at(a, task, next), run.count);
    if (run.first < 0)
        run.count = 0; /* they are not neighbours */
    const int64_t first = run.first + run.count * head / heads, last = run.first + run.count * (head + 1) / heads;
    w->keys_ahead = ahead_of(a->k, task->kv_first, heads, first, last);
    w->values_ahead = ahead_of(a->v, task->kv_first, heads, first, last);
}

static void attend_all(const struct attention *a, struct work *w, const struct task *task)
{
    const int rows = (int)rows_of(task);
    const int64_t heads = task->kv_last - task->kv_first;
    begin_rows(a, w, task);
#if defined(HAS_AMX)
    if (a->by_tiles)
        tile_queries(&w->tiles, w->queries, rows, a->features);
#endif
    int64_t next, cells;
    for (int64_t cell = find_tile(a, w, rows, 0); cell < a->history; cell = next) {
        next = find_tile(a, w, rows, cell + CELLS);
        cells = tile_cells(a, cell);
        for (int64_t head = 0; head < heads; head++) {
            look_ahead(a, w, task, next, head);
            int count = find_active(w, (int)head * rows, (int)(head + 1) * rows, cell, cells);
            attend_tile(a, w, task, count, task->kv_first + head, cell, cells);
        }
    }
}

/* A NaN may have come from hidden cells: of another sequence, or of none. Such rows
 * are computed again, one by one, with zeros in these cells, unless the query itself holds a NaN. */
static void attend(const struct attention *a, struct work *w, const struct task *task)
{
    int spoilt[BLOCK_ROWS], none[1];
    w->hides = 0;
    attend_all(a, w, task);
    const int count = end_rows(a, w, task, spoilt);
    w->hides = 1;
    for (int i = 0; a->mask && i < count; i++) {
        const int64_t kv_head = task->kv_first + spoilt[i] / rows_of(task);
        int64_t t, head;
        place_of_row(a, task, kv_head, spoilt[i] % rows_of(task), &t, &head);
        const int64_t in_group = head - kv_head * (a->heads / a->kv_heads);
        const struct task one = {kv_head, kv_head + 1, in_group, in_group + 1, t, t + 1, task->sequence};
        if (has_finite_query(a, t, head)) {
            attend_all(a, w, &one);
            end_rows(a, w, &one, none);
        }
    }
}

/* The tokens of each sequence by themselves, where sequences have cells of their own. */
static void attend_each(const struct attention *a, struct work *w, const struct task *task)
{
    struct task part = *task;
    for (; a->cells && part.token_first < task->token_last; part.token_first = part.token_last) {
        part.sequence = a->sequences[part.token_first];
        part.token_last = part.token_first + 1;
        while (part.token_last < task->token_last && a->sequences[part.token_last] == part.sequence)
            part.token_last++;
        attend(a, w, &part);
    }
    if (!a->cells)
        attend(a, w, task);
}

/* dst: F32 (tokens, heads, value features); src: queries (heads, tokens, features), keys and values
 * (kv heads, history, features), then the mask and the sinks if there are any; then, if there are, I32 (sequences,
 * history): the cells at each sequence's positions, and I32 (tokens, 1): the sequence of each token. */
static void attention(struct tensor *dst, int thread, int threads, void *user)
{
    struct attention_params params;
    struct work work;
    (void)user;
    memcpy(&params, dst->op_params + OWN_PARAMS, sizeof params);
    const struct tensor *q = dst->src[0], *k = dst->src[1], *v = dst->src[2];
    struct tensor *const *more = dst->src + 3;
    const struct tensor *mask = params.has_mask ? *more++ : NULL, *sinks = params.has_sinks ? *more++ : NULL;
    const struct attention a = {
        .q = q, .k = k, .v = v, .mask = mask, .sinks = sinks,
        .cells = params.has_cells ? more[0]->data : NULL, .sequences = params.has_cells ? more[1]->data : NULL,
        .tokens = q->ne[1], .history = params.has_cells ? mask->ne[0] : k->ne[1], .heads = q->ne[2], .kv_heads = k->ne[2],
        .features = k->ne[0], .value_features = v->ne[0],
        .scale = params.scale, .cap = params.cap, .max_bias = params.max_bias, .least = exponential(-INFINITY),
        .out = dst->data,
#if defined(HAS_AMX)
        .by_tiles = attends_by_tiles(q->ne[1] * (q->ne[2] / k->ne[2])) && k->type != TYPE_F32 && v->type != TYPE_F32,
#endif
    };
#if defined(HAS_AMX)
    if (a.by_tiles)
        tiles_begin();
#endif
    const struct division d = divide(&a, threads);
    const int64_t group = a.heads / a.kv_heads;
    for (int64_t i = thread; i < d.kv_ranges * d.parts * d.blocks; i += threads) {
        int64_t b = i % d.blocks, part = i / d.blocks % d.parts, range = i / d.blocks / d.parts;
        struct task task = {
            range * d.kv_each, (range + 1) * d.kv_each, part * d.heads, (part + 1) * d.heads,
            b * d.block, (b + 1) * d.block, 0,
        };
        task.kv_last = task.kv_last < a.kv_heads ? task.kv_last : a.kv_heads;
        task.head_last = task.head_last < group ? task.head_last : group;
        task.token_last = task.token_last < a.tokens ? task.token_last : a.tokens;
        if (task.head_first < task.head_last)
            attend_each(&a, &work, &task);
    }
#if defined(HAS_AMX)
    if (a.by_tiles)
        tiles_end();
#endif
}
