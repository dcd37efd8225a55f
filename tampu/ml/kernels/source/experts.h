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
    int tiles; /* of its panel, where tiles are multiplied; else 0 */
};

INLINE void copy_block(const uint8_t *block, uint8_t *to, int32_t column, int32_t n)
{
    memcpy(to + BLOCK * column, block, BLOCK);
    for (int part = 0; part < 4; part++)
        memcpy(to + BLOCK * n + 4 * (part * n + column), block + BLOCK + 4 * part, 4);
}

/* Blocks `first` to `last` (groups, of floats) of rows of one token; those that share an input quantize it once. */
static void put_quantized(const struct spot *spots, int count, int64_t first, int64_t last)
{
    uint8_t block[QUANTIZED_BLOCK];
    for (int64_t b = first; b < last; b++)
        for (int i = 0; i < count; i++) {
            const struct place place = spots[i].place;
            if (i == 0 || spots[i].input != spots[i - 1].input)
                quantize_block(spots[i].input + BLOCK * b, block, 0, 1);
            copy_block(block, spots[i].panel + b * QUANTIZED_BLOCK * place.width, place.column,
                       place.width);
        }
}

/* The inputs that one thread packs at least: a block, or what a tile has. */
INLINE int group_block(int type)
{
#if defined(HAS_AMX)
    return is_floating(type) ? TILE_INPUTS : activation_block(type);
#else
    return activation_block(type);
#endif
}

/* Where the packed activations of each expert begin; tiles take whole ones. */
static void place_experts(int type, int32_t experts, const int32_t *begins, int64_t inputs, int64_t *places)
{
    int64_t at = 0;
    for (int32_t e = 0; e < experts; e++) {
        const int64_t rows = begins[e + 1] - begins[e];
        places[e] = at;
#if defined(HAS_AMX)
        if (uses_gemm(type, rows)) {
            at += gemm_bytes(type, rows, inputs);
            continue;
        }
#endif
        at += rows * activation_row_bytes(type, inputs);
    }
}

/* Where row `row` of an expert's so many goes: `panels` are the expert's. */
INLINE struct spot spot_of(int type, uint8_t *panels, const float *input, int64_t row, int64_t rows, int64_t inputs)
{
#if defined(HAS_AMX)
    if (uses_gemm(type, rows)) {
        const struct gemm_place at = gemm_place_of(row, rows);
        return (struct spot){panels + at.first * gemm_row_bytes(planes_of(type), inputs), input,
                             {at.first, at.column, GEMM_PANEL}, at.tiles};
    }
#endif
    const struct place place = place_of(row, rows, panels_of(type, rows));
    return (struct spot){panels + place.first * activation_row_bytes(type, inputs), input, place, 0};
}

static void put_rows(int type, const struct spot *spots, int count, int64_t first, int64_t last, int64_t inputs)
{
    const int block = group_block(type);
#if defined(HAS_AMX)
    struct spot others[SHARED];
    int left = 0;
    for (int i = 0; i < count; i++)
        if (spots[i].tiles)
            put_brain(planes_of(type), spots[i].input, spots[i].panel, spots[i].tiles, spots[i].place.column,
                      block * first, block * last < inputs ? block * last : inputs, inputs);
        else
            others[left++] = spots[i];
    spots = others;
    count = left;
#endif
    if (block == BLOCK && !is_floating(type)) {
        put_quantized(spots, count, first, last);
        return;
    }
    for (int i = 0; i < count; i++)
        put_row(type, spots[i].input, spots[i].panel, spots[i].place, block * first,
                block * last < inputs ? block * last : inputs, inputs);
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
    const int64_t blocks = (inputs + group_block(params.type) - 1) / group_block(params.type);
    const int64_t used = choice->ne[0], all = choice->ne[1] * blocks;
    const struct plan plan = plan_of(dst->data, params.experts, used * choice->ne[1]);
    int32_t begins[MAX_EXPERTS + 1], next[MAX_EXPERTS];
    int64_t places[MAX_EXPERTS];
    struct spot spots[SHARED];
    (void)user;
    count_rows(choice, params.experts, begins);
    place_experts(params.type, params.experts, begins, inputs, places);
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
            const float *input = row_of(x, is_shared ? token : token * used + k);
            if (first == 0)
                plan.results[row] = (int32_t)(token * used + k);
            spots[count++] = spot_of(params.type, plan.panels + places[e], input, row - begins[e], rows, inputs);
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

/* A chunk of strips of one expert: its rows are `results`, its packed activations `panels`. */
struct expert_task {
    int type;
    int64_t inputs, rows, tokens, first, last; /* rows: of the matrix; first, last: strips */
    const uint8_t *weights, *panels;
    const int32_t *results;
    float *out;
    int32_t streams; /* strips at a time, for few tokens */
    struct fetch fetch;
};

static void __attribute__((noinline)) multiply_expert(const struct expert_task *t)
{
    const size_t strip_bytes = strip_bytes_of(t->type, t->inputs);
    const int64_t row_bytes = activation_row_bytes(t->type, t->inputs);
    const int32_t panels = panels_of(t->type, t->tokens);
    tile *const *tiles = tiles_of(t->type);
    float results[STREAMS * FEW * ROWS + FLOAT_COLUMNS * ROWS];
    for (int32_t p = 0; p < panels; p++) {
        const int64_t row = panel_begin(t->tokens, panels, p);
        const int64_t width = panel_begin(t->tokens, panels, p + 1) - row;
        const int64_t streams = width <= FEW ? t->streams : 1;
        for (int64_t s = t->first; s < t->last; s += streams) {
            const int64_t end = s + streams < t->last ? s + streams : t->last;
            const int all = (int)(end - s) * ROWS;
            const int left = t->rows - s * ROWS < all ? (int)(t->rows - s * ROWS) : all;
            tiles[width - 1](t->weights + s * strip_bytes, NULL, t->panels + row * row_bytes, t->inputs, results,
                             all, left, t->fetch);
            scatter_tile(results, all, t->results + row, width, t->out + s * ROWS, t->rows, left);
        }
    }
}

/* Chunks of strips of all experts that have rows, one after the other from a counter. */
struct expert_tasks {
    struct tensor *dst;
    struct activations *x;
    struct experts_params params;
    struct plan plan;
    int64_t chunk; /* strips */
    int32_t streams;
    int64_t places[MAX_EXPERTS];
};

static int next_expert(struct expert_tasks *from, struct expert_task *task)
{
    const int64_t rows = from->dst->ne[0], strips = (rows + ROWS - 1) / ROWS;
    const int64_t chunks = (strips + from->chunk - 1) / from->chunk;
    const int64_t number = __atomic_fetch_add(&from->x->counters[from->params.counter], 1, __ATOMIC_RELAXED);
    if (number >= chunks * from->x->panels)
        return 0;
    const int32_t e = from->plan.used[number / chunks], begin = from->plan.begins[e];
    const int64_t first = number % chunks * from->chunk;
    *task = (struct expert_task){
        .type = from->params.type, .inputs = from->x->inputs, .rows = rows,
        .tokens = from->plan.begins[e + 1] - begin, .first = first,
        .last = first + from->chunk < strips ? first + from->chunk : strips,
        .weights = (const uint8_t *)from->dst->src[0]->data
                   + (size_t)(e * strips) * strip_bytes_of(from->params.type, from->x->inputs),
        .panels = from->plan.panels + from->places[e], .results = from->plan.results + begin,
        .out = from->dst->data, .streams = from->streams, .fetch = from->params.fetch,
    };
    return 1;
}

#if defined(HAS_AMX)
/* The next task for tiles; those of experts with few rows are done on the way. */
static int next_expert_gemm(void *source, struct gemm_task *task)
{
    struct expert_task t;
    while (next_expert(source, &t)) {
        if (!uses_gemm(t.type, t.tokens)) {
            multiply_expert(&t);
            continue;
        }
        const size_t strip_bytes = strip_bytes_of(t.type, t.inputs);
        *task = (struct gemm_task){
            .type = t.type, .inputs = t.inputs, .strips = t.last - t.first,
            .rows = (t.last * ROWS < t.rows ? t.last * ROWS : t.rows) - t.first * ROWS,
            .weights = t.weights + (size_t)t.first * strip_bytes, .strip_bytes = strip_bytes,
            .tokens = t.tokens, .panels = t.panels, .out = t.out + t.first * ROWS, .stride = t.rows,
            .results = t.results,
        };
        return 1;
    }
    return 0;
}
#endif

/* dst: F32 (tokens, used, rows); src[0]: strips of each expert's weights; src[1]: grouped activations. */
static void product_each(struct tensor *dst, int thread, int threads, void *user)
{
    struct expert_tasks tasks = {.dst = dst, .x = dst->src[1]->data};
    const int64_t strips = (dst->ne[0] + ROWS - 1) / ROWS;
    (void)thread;
    (void)user;
    memcpy(&tasks.params, dst->op_params + OWN_PARAMS, sizeof tasks.params);
    tasks.plan = plan_of(tasks.x, tasks.params.experts, dst->ne[1] * dst->ne[2]);
    const int32_t used = tasks.x->panels ? tasks.x->panels : 1;
    const int64_t mean = (dst->ne[1] * dst->ne[2] + used - 1) / used;
    const struct share share =
        share_of(strips, used, mean, strip_bytes_of(tasks.params.type, tasks.x->inputs), threads, tasks.params.fetch,
                 chunk_bytes_of(tasks.params.chunk_bytes));
    tasks.chunk = share.chunk;
    tasks.streams = share.streams;
    place_experts(tasks.params.type, tasks.params.experts, tasks.plan.begins, tasks.x->inputs, tasks.places);
#if defined(HAS_AMX)
    tasks.chunk = tasks.chunk < GEMM_STRIPS ? tasks.chunk : GEMM_STRIPS;
    multiply_tasks(next_expert_gemm, &tasks);
#else
    for (struct expert_task task; next_expert(&tasks, &task);)
        multiply_expert(&task);
#endif
}

/* dst: F32 (tokens, features): the sum of each token's rows, each times its weight. src[0]: F32 (tokens,
 * used, features); src[1]: F32 (tokens, used); both without gaps. */
static void weighted_total(struct tensor *dst, int thread, int threads, void *user)
{
    enum { WIDTH = 256 }; /* features at a time */
    const int64_t features = dst->ne[0], used = dst->src[0]->ne[1];
    const int64_t blocks = (features + WIDTH - 1) / WIDTH, all = blocks * dst->ne[1];
    (void)user;
    for (int64_t at = all * thread / threads; at < all * (thread + 1) / threads; at++) {
        const int64_t token = at / blocks, begin = at % blocks * WIDTH;
        const int64_t end = begin + WIDTH < features ? begin + WIDTH : features;
        const float *rows = (const float *)dst->src[0]->data + token * used * features;
        const float *weights = (const float *)dst->src[1]->data + token * used;
        float *to = (float *)dst->data + token * features;
        int64_t f = begin;
        for (; f + 16 <= end; f += 16) {
            vf sum = vf_zero();
            for (int64_t k = 0; k < used; k++)
                sum = vf_fma(vf_splat(weights[k]), vf_load(rows + k * features + f), sum);
            vf_store(to + f, sum);
        }
        for (; f < end; f++) {
            float sum = 0.0f;
            for (int64_t k = 0; k < used; k++)
                sum += weights[k] * rows[k * features + f];
            to[f] = sum;
        }
    }
}
