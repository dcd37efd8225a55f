/* How a product is divided among threads: chunks of strips, taken one after the other from a counter,
 * so that a thread that is held up by something else leaves its share to the others. */

#define CHUNK_BYTES (256 * 1024) /* of weights: what stays in the second cache beside a panel */
#define LEAST_CHUNKS 4           /* for each thread, so that the last one to finish is not far behind */

/* Parameters behind ggml's own: the type of the weights and the number of the counter. */
struct product_params {
    int32_t type;
    int32_t counter;
};

/* Strips of a chunk, where so many matrices are multiplied by; the chunks of one are equal. */
static int64_t chunk_strips(int64_t strips, int64_t matrices, size_t strip_bytes, int threads)
{
    int64_t fitting = (int64_t)(CHUNK_BYTES / strip_bytes);
    int64_t fair = strips * matrices / ((int64_t)threads * LEAST_CHUNKS);
    int64_t most = fitting < fair ? fitting : fair;
    int64_t chunks = most > 1 ? (strips + most - 1) / most : strips;
    return (strips + chunks - 1) / chunks;
}

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
    const int64_t chunk = chunk_strips(strips, 1, strip_bytes, threads);
    tile *const *tiles = tiles_of(params.type);
    float *out = dst->data;
    (void)thread;
    (void)user;
    for (;;) {
        int64_t first = chunk * __atomic_fetch_add(&x->counters[params.counter], 1, __ATOMIC_RELAXED);
        if (first >= strips)
            return;
        int64_t last = first + chunk < strips ? first + chunk : strips;
        for (int32_t p = 0; p < x->panels; p++) {
            int64_t token = panel_begin(tokens, x->panels, p);
            int64_t width = panel_begin(tokens, x->panels, p + 1) - token;
            for (int64_t s = first; s < last; s++) {
                int64_t left = rows - s * ROWS;
                tiles[width - 1](weights + s * strip_bytes, panels + token * token_bytes, inputs,
                                 out + token * rows + s * ROWS, rows, left < ROWS ? (int)left : ROWS);
            }
        }
    }
}
