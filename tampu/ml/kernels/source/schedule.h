/* How a product is divided among threads: chunks of strips, taken one after the other from a counter,
 * so that a thread that is held up by something else leaves its share to the others. */

#define CHUNK_BYTES (256 * 1024) /* of weights, where the second cache's size is not known */
#define PREPARED_BYTES (520 * 1024) /* the same where weights are prepared: the originals are not read again */
#define MIN_CHUNKS 4 /* for each thread, so that the last one to finish is not far behind */

/* Parameters behind ggml's own: the type of the weights, the number of the counter, how weights are read,
 * and how many bytes of them stay in the second cache beside a panel (0: not known). */
struct product_params {
    int32_t type;
    int32_t counter;
    struct fetch fetch;
    int32_t chunk_bytes;
};

INLINE size_t chunk_bytes_of(int32_t given)
{
    return given > 0 ? (size_t)given : CHUNK_BYTES;
}

/* Strips of a chunk, where so many matrices are multiplied by; the chunks of one are equal. */
static int64_t chunk_strips(int64_t strips, int64_t matrices, size_t strip_bytes, int threads, size_t bytes)
{
    int64_t fitting = (int64_t)(bytes / strip_bytes);
    int64_t fair = strips * matrices / ((int64_t)threads * MIN_CHUNKS);
    int64_t most = fitting < fair ? fitting : fair;
    int64_t chunks = most > 1 ? (strips + most - 1) / most : strips;
    return (strips + chunks - 1) / chunks;
}

/* The same where all tokens are in one panel, few of them: each weight is read once, and several strips
 * at a time, as long as all threads have some. */
struct share {
    int64_t chunk;
    int32_t streams; /* strips at a time */
};

static struct share share_of(int64_t strips, int64_t matrices, int64_t tokens, size_t strip_bytes, int threads,
                             struct fetch fetch, size_t bytes)
{
    int64_t each = strips * matrices / (threads * 2), streams = fetch.streams / tokens;
    struct share share = {chunk_strips(strips, matrices, strip_bytes, threads, bytes), 1};
    if (tokens > FEW)
        return share;
    streams = streams < each ? streams : each;
    if (streams > 1) {
        share.streams = (int32_t)streams;
        share.chunk = (share.chunk + streams - 1) / streams * streams;
    }
    return share;
}

/* A chunk's weights as the tiles of its many panels want them. */
struct prepared {
    int64_t bytes; /* of a strip; 0: none are prepared */
    uint8_t strips[PREPARED_BYTES];
};

INLINE const uint8_t *prepared_strip(const struct prepared *prepared, int64_t index)
{
    return prepared->bytes ? prepared->strips + index * prepared->bytes : NULL;
}

#if defined(HAS_WORDS)
static void prepare_chunk(struct prepared *to, const uint8_t *weights, size_t strip_bytes, int64_t strips,
                          int64_t inputs)
{
    const int64_t bytes = inputs / FIXED * WORD_BYTES;
    if (bytes * strips > (int64_t)sizeof to->strips)
        return;
    to->bytes = bytes;
    for (int64_t i = 0; i < strips; i++)
        prepare_fixed(weights + (size_t)i * strip_bytes, inputs, to->strips + i * bytes);
}
#endif

#if defined(HAS_AMX)
/* Strips of a chunk for tiles: so few that a thread that is held up does not keep the others waiting, so many
 * that the activations are not read again for each two of them. */
INLINE int64_t gemm_strips(int64_t strips, int threads)
{
    const int64_t fair = strips / (threads * GEMM_CHUNKS);
    return fair < GEMM_FEW ? GEMM_FEW : fair < GEMM_STRIPS ? fair / 2 * 2 : GEMM_STRIPS;
}

/* A product's chunks of strips as tasks. */
struct gemm_chunks {
    struct tensor *dst;
    struct activations *x;
    struct product_params params;
    int64_t chunk; /* strips */
};

static int next_chunk(void *source, struct gemm_task *task)
{
    struct gemm_chunks *c = source;
    const int64_t rows = c->dst->ne[0], strips = (rows + ROWS - 1) / ROWS;
    const int64_t first = c->chunk * __atomic_fetch_add(&c->x->counters[c->params.counter], 1, __ATOMIC_RELAXED);
    if (first >= strips)
        return 0;
    const int64_t last = first + c->chunk < strips ? first + c->chunk : strips;
    const size_t strip_bytes = strip_bytes_of(c->params.type, c->x->inputs);
    *task = (struct gemm_task){
        .type = c->params.type, .inputs = c->x->inputs, .strips = last - first,
        .rows = (last * ROWS < rows ? last * ROWS : rows) - first * ROWS,
        .weights = (const uint8_t *)c->dst->src[0]->data + (size_t)first * strip_bytes,
        .strip_bytes = strip_bytes, .tokens = c->dst->ne[1] * c->dst->ne[2] * c->dst->ne[3],
        .panels = (const uint8_t *)(c->x + 1), .out = (float *)c->dst->data + first * ROWS, .stride = rows,
    };
    return 1;
}
#endif


static const struct fetch AHEAD_INTO_CACHE = {FETCH_T0, PREFETCH, 1};

/* dst: F32 (tokens, rows); src[0]: strips of weights; src[1]: packed activations. */
static void product(struct tensor *dst, int thread, int threads, void *user)
{
    struct product_params params;
    memcpy(&params, dst->op_params + OWN_PARAMS, sizeof params);
    struct activations *x = dst->src[1]->data;
    const uint8_t *weights = dst->src[0]->data;
    const uint8_t *panels = (const uint8_t *)(x + 1);
    const int64_t rows = dst->ne[0], tokens = dst->ne[1] * dst->ne[2] * dst->ne[3];
    const int64_t strips = (rows + ROWS - 1) / ROWS, inputs = x->inputs;
    const size_t strip_bytes = strip_bytes_of(params.type, inputs);
    const int64_t token_bytes = activation_row_bytes(params.type, inputs);
    const size_t chunk_bytes = params.type == TYPE_F16_FIXED && x->panels > 1 ? PREPARED_BYTES : chunk_bytes_of(params.chunk_bytes);
    const struct share share = share_of(strips, 1, tokens, strip_bytes, threads, params.fetch, chunk_bytes);
    const int64_t chunk = share.chunk;
    /* What several panels multiply by stays in the second cache: a hint for memory would keep it out. */
    const struct fetch fetch = x->panels > 1 ? AHEAD_INTO_CACHE : params.fetch;
    tile *const *tiles = tiles_of(params.type);
    float *out = dst->data;
    struct prepared prepared;
    (void)thread;
    (void)user;
#if defined(HAS_AMX)
    if (uses_gemm(params.type, tokens)) {
        struct gemm_chunks source = {dst, x, params, gemm_strips(strips, threads)};
        multiply_tasks(next_chunk, &source);
        return;
    }
#endif
    for (;;) {
        int64_t first = chunk * __atomic_fetch_add(&x->counters[params.counter], 1, __ATOMIC_RELAXED);
        if (first >= strips)
            return;
        int64_t last = first + chunk < strips ? first + chunk : strips;
        prepared.bytes = 0;
#if defined(HAS_WORDS)
        if (params.type == TYPE_F16_FIXED && x->panels > 1)
            prepare_chunk(&prepared, weights + first * strip_bytes, strip_bytes, last - first, inputs);
#endif
        for (int32_t p = 0; p < x->panels; p++) {
            int64_t token = panel_begin(tokens, x->panels, p);
            int64_t width = panel_begin(tokens, x->panels, p + 1) - token;
            for (int64_t s = first; s < last; s += share.streams) {
                int64_t end = s + share.streams < last ? s + share.streams : last;
                int64_t left = rows - s * ROWS;
                tiles[width - 1](weights + s * strip_bytes, prepared_strip(&prepared, s - first),
                                 panels + token * token_bytes, inputs, out + token * rows + s * ROWS, rows,
                                 left < (end - s) * ROWS ? (int)left : (int)(end - s) * ROWS, fetch);
            }
        }
    }
}
