/* Products of many tokens, with AMX tiles.
 *
 * Weights and activations are BF16: sixteen tokens and sixteen rows by 32 inputs are one instruction, and
 * nothing is left to do between blocks, since the scales are in the weights already. Two by two tiles of
 * results are in registers together. Of a chunk of strips, some inputs (a slice) of all its rows are
 * dequantized into the second cache, and multiplied by the same inputs of a panel of 32 tokens, which then
 * stay in the first cache; the sums of each slice are kept beside them.
 *
 * A product of few tokens costs less without: see `gemm_min`.
 */

#include "dequantize.h"

enum {
    GEMM_MIN_FLOAT = 13,     /* tokens */
    GEMM_MIN_QUANTIZED = 32, /* the other way multiplies bytes, four at a time */
    GEMM_PANEL = 32,   /* tokens whose activations are together: two tiles */
    GEMM_STRIPS = 16,  /* of a chunk, at most */
    GEMM_TOKENS = 512, /* whose sums are kept together */
    GEMM_DEPTH = 512,  /* inputs, of all planes */
    GEMM_CHUNKS = 4,   /* for each thread, at least, as long as they have FEW strips */
    GEMM_FEW = 4,
    PAIR = 2 * TILE_BYTES,
};

/* From how many tokens on weights of a type are multiplied by tiles. */
INLINE int64_t gemm_min(int type)
{
    return is_floating(type) ? GEMM_MIN_FLOAT : GEMM_MIN_QUANTIZED;
}

INLINE int uses_gemm(int type, int64_t tokens) { return tokens >= gemm_min(type); }

INLINE int64_t up_to_multiple(int64_t number, int64_t of) { return (number + of - 1) / of * of; }

/* Bytes of one token's activations in all planes. */
INLINE int64_t gemm_row_bytes(int planes, int64_t inputs)
{
    return 2 * planes * up_to_multiple(inputs, TILE_INPUTS);
}

/* What one thread needs. */
struct gemm {
    _Alignas(64) uint8_t weights[2][GEMM_STRIPS * GEMM_DEPTH * 2 * ROWS]; /* of this slice and the next */
    _Alignas(64) float sums[GEMM_TOKENS * GEMM_STRIPS * ROWS];
    _Alignas(64) float tile[ROWS * 16];
};

/* Some strips of a matrix, to be multiplied with some tokens. */
struct gemm_task {
    int type;
    int64_t inputs, strips, rows; /* rows: of these strips, without what fills the last one */
    const uint8_t *weights;
    size_t strip_bytes;
    int64_t tokens;
    const uint8_t *panels;
    float *out;             /* of the first row */
    int64_t stride;         /* from token to token */
    const int32_t *results; /* where each token's result belongs; NULL: in order */
};

/* Two tiles of tokens (or one) by two strips (or one), and how far apart those are. */
struct gemm_step {
    int tiles, strips;
    size_t strip;
};

#define GEMM_LOOP(TILES_OF_TOKENS, STRIPS)                                                           \
    for (int64_t i = 0; i < count; i++, a += (TILES_OF_TOKENS) * TILE_BYTES, b += TILE_BYTES) {      \
        tile_load(4, a, 64);                                                                         \
        tile_load(5, b, 64);                                                                         \
        tile_dot_bf16(0, 4, 5);                                                                      \
        if ((STRIPS) == 2) {                                                                         \
            tile_load(6, b + strip, 64);                                                             \
            tile_dot_bf16(1, 4, 6);                                                                  \
        }                                                                                            \
        if ((TILES_OF_TOKENS) == 2) {                                                                \
            tile_load(7, a + TILE_BYTES, 64);                                                        \
            tile_dot_bf16(2, 7, 5);                                                                  \
            if ((STRIPS) == 2)                                                                       \
                tile_dot_bf16(3, 7, 6);                                                              \
        }                                                                                            \
    }

/* Add products over `count` tiles of inputs to tiles 0 to 3. */
static void add_products(const struct gemm_step *s, const uint8_t *a, const uint8_t *b, int64_t count)
{
    const size_t strip = s->strip;
    if (s->tiles == 2 && s->strips == 2)
        GEMM_LOOP(2, 2)
    else if (s->tiles == 2)
        GEMM_LOOP(2, 1)
    else if (s->strips == 2)
        GEMM_LOOP(1, 2)
    else
        GEMM_LOOP(1, 1)
}

INLINE void zero_sums(void)
{
    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    tile_zero(3);
}

INLINE void load_sums(const float *from)
{
    tile_load(0, from, 64);
    tile_load(1, from + 256, 64);
    tile_load(2, from + 512, 64);
    tile_load(3, from + 768, 64);
}

INLINE void store_sums(float *to)
{
    tile_store(0, to, 64);
    tile_store(1, to + 256, 64);
    tile_store(2, to + 512, 64);
    tile_store(3, to + 768, 64);
}

INLINE void store_tile_of(int t, void *to, int64_t stride)
{
    switch (t) {
    case 0: tile_store(0, to, stride); break;
    case 1: tile_store(1, to, stride); break;
    case 2: tile_store(2, to, stride); break;
    default: tile_store(3, to, stride); break;
    }
}

/* One tile of results to where it belongs: of the tokens from `token` on, and the rows of a strip. */
static void put_results(struct gemm *g, const struct gemm_task *task, int t, int64_t token, int64_t strip)
{
    const int64_t tokens = task->tokens - token, rows = task->rows - strip * ROWS;
    float *out = task->out + strip * ROWS;
    if (tokens >= 16 && rows >= ROWS && !task->results) {
        store_tile_of(t, out + token * task->stride, 4 * task->stride);
        return;
    }
    store_tile_of(t, g->tile, 64);
    for (int64_t i = 0; i < 16 && i < tokens; i++) {
        float *to = out + (task->results ? task->results[token + i] : token + i) * task->stride;
        if (rows >= ROWS)
            vf_store(to, vf_load(g->tile + 16 * i));
        else
            memcpy(to, g->tile + 16 * i, (size_t)rows * sizeof *to);
    }
}

/* What is multiplied at a time: inputs `first` to `last` of a task's strips and of its tokens `begin` to `end`. */
struct gemm_slice {
    struct gemm_task task;
    int64_t begin, end, first, last;
    uint8_t *weights;     /* dequantized, strip by strip, in up to two planes */
    size_t strip, plane;  /* bytes from strip to strip, and from plane to plane */
    int64_t tiles, ready; /* of weights, and how many of them are dequantized */
};

static void begin_slice(struct gemm_slice *s, int64_t begin, int64_t first)
{
    const struct gemm_task *task = &s->task;
    const int64_t depth = GEMM_DEPTH / planes_of(task->type);
    s->begin = begin;
    s->end = begin + GEMM_TOKENS < task->tokens ? begin + GEMM_TOKENS : task->tokens;
    s->first = first;
    s->last = first + depth < task->inputs ? first + depth : task->inputs;
    s->strip = (size_t)(depth * 2 * ROWS);
    s->plane = GEMM_STRIPS * s->strip;
    s->tiles = task->strips * ((s->last - first + TILE_INPUTS - 1) / TILE_INPUTS);
    s->ready = 0;
}

/* Dequantize some more tiles of a slice, as far as there are some. */
INLINE void dequantize_some(struct gemm_slice *s, int64_t count)
{
    const int64_t across = (s->last - s->first + TILE_INPUTS - 1) / TILE_INPUTS;
    for (; count > 0 && s->ready < s->tiles; count--, s->ready++) {
        const int64_t strip = s->ready / across, tile = s->ready % across;
        dequantize(s->task.type, s->task.weights + (size_t)strip * s->task.strip_bytes, s->task.inputs,
                   s->first + tile * TILE_INPUTS, s->weights + (size_t)strip * s->strip + tile * TILE_BYTES,
                   s->plane);
    }
}

/* Multiply a slice by its panels. Meanwhile dequantize the next one: tile products and other instructions run
 * beside each other, if they are near enough to each other in the program. */
static void multiply_slice(struct gemm *g, const struct gemm_slice *s, struct gemm_slice *next)
{
    const struct gemm_task *task = &s->task;
    const int planes = planes_of(task->type);
    const int64_t count = (s->last - s->first + TILE_INPUTS - 1) / TILE_INPUTS;
    const int64_t all = up_to_multiple(task->inputs, TILE_INPUTS) / TILE_INPUTS;
    const int64_t parts = (s->end - s->begin + GEMM_PANEL - 1) / GEMM_PANEL * ((task->strips + 1) / 2);
    const int64_t share = next ? (next->tiles + parts - 1) / parts : 0;
    float *sums = g->sums;
    for (int64_t token = s->begin; token < s->end; token += GEMM_PANEL) {
        const int tiles = task->tokens - token > 16 ? 2 : 1;
        const uint8_t *a = task->panels + token * gemm_row_bytes(planes, task->inputs)
                           + s->first / TILE_INPUTS * tiles * TILE_BYTES;
        const uint8_t *rest = a + all * tiles * TILE_BYTES;
        for (int64_t strip = 0; strip < task->strips; strip += 2, sums += 4 * 256) {
            const struct gemm_step step = {tiles, task->strips - strip > 1 ? 2 : 1, s->strip};
            const uint8_t *b = s->weights + (size_t)strip * s->strip;
            if (s->first == 0)
                zero_sums();
            else
                load_sums(sums);
            add_products(&step, a, b, count);
            if (planes == 2) {
                add_products(&step, rest, b, count);
                add_products(&step, a, b + s->plane, count);
            }
            if (share)
                dequantize_some(next, share);
            if (s->last < task->inputs) {
                store_sums(sums);
                continue;
            }
            for (int t = 0; t < 4; t++)
                if (t % 2 < step.strips && t / 2 < tiles)
                    put_results(g, task, t, token + t / 2 * 16, strip + t % 2);
        }
    }
}

/* Gives the next task, or 0. */
typedef int next_task(void *source, struct gemm_task *task);

/* The slice behind this one, of the same task or of the next. */
static int advance(const struct gemm_slice *s, struct gemm_slice *to, next_task *next, void *source)
{
    to->task = s->task;
    if (s->last < s->task.inputs)
        begin_slice(to, s->begin, s->last);
    else if (s->end < s->task.tokens)
        begin_slice(to, s->end, 0);
    else if (next(source, &to->task))
        begin_slice(to, 0, 0);
    else
        return 0;
    return 1;
}

/* Multiply all tasks that a source gives, on this thread. */
static void __attribute__((noinline)) multiply_tasks(next_task *next, void *source)
{
    struct gemm gemm;
    struct gemm_slice slices[2] = {{.weights = gemm.weights[0]}, {.weights = gemm.weights[1]}};
    if (!next(source, &slices[0].task))
        return;
    tiles_begin();
    begin_slice(&slices[0], 0, 0);
    dequantize_some(&slices[0], slices[0].tiles);
    for (int now = 0, more = 1; more; now = !now) {
        more = advance(&slices[now], &slices[!now], next, source);
        multiply_slice(&gemm, &slices[now], more ? &slices[!now] : NULL);
        if (more)
            dequantize_some(&slices[!now], slices[!now].tiles);
    }
    tiles_end();
}

/* One token's inputs `first` to `last` (whole tiles, but for the last of all) to its place: `to` is the
 * panel, `tiles` are those of its tokens, `column` is the token's place among them. */
INLINE void put_brain(int planes, const float *row, uint8_t *to, int tiles, int64_t column, int64_t first,
                      int64_t last, int64_t inputs)
{
    const int64_t plane = up_to_multiple(inputs, TILE_INPUTS) / TILE_INPUTS * tiles * TILE_BYTES;
    to += column / 16 * TILE_BYTES + column % 16 * 64;
    for (int64_t k = first; k < last; k += TILE_INPUTS) {
        uint8_t *at = to + k / TILE_INPUTS * tiles * TILE_BYTES;
        const vf x = vf_load(row + k), y = inputs - k >= TILE_INPUTS ? vf_load(row + k + 16) : vf_zero();
        vf_store_brain(at, x, y);
        if (planes == 2)
            vf_store_brain(at + plane, vf_sub(x, vf_load_brain(at)), vf_sub(y, vf_load_brain(at + 32)));
    }
}

/* Where a token is among the panels: which tiles are its panel's, and its place in them. */
struct gemm_place {
    int64_t first;
    int tiles, column;
};

INLINE struct gemm_place gemm_place_of(int64_t token, int64_t tokens)
{
    const int64_t first = token / GEMM_PANEL * GEMM_PANEL;
    return (struct gemm_place){first, tokens - first > 16 ? 2 : 1, (int)(token - first)};
}

/* Bytes of the activations of so many tokens of one matrix. */
INLINE int64_t gemm_bytes(int type, int64_t tokens, int64_t inputs)
{
    return up_to_multiple(tokens, 16) * gemm_row_bytes(planes_of(type), inputs);
}

/* Of rows of some experts, at most, whatever the choice of experts is. */
static int64_t activation_bytes(int type, int64_t experts, int64_t tokens, int64_t inputs)
{
    const int64_t few = activation_row_bytes(type, inputs), many = gemm_row_bytes(planes_of(type), inputs);
    const int64_t used = tokens / gemm_min(type) < experts ? tokens / gemm_min(type) : experts;
    return tokens * (few > many ? few : many) + 15 * used * many;
}
