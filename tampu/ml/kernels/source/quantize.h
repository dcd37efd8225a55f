/* Activations into panels; see packed.h. */

/* The panel that a token is in, its place there and how many share it. */
struct place {
    int64_t first;
    int32_t column, width;
};

INLINE struct place place_of(int64_t token, int64_t tokens, int32_t panels)
{
    int64_t even = tokens / panels, more = tokens % panels;
    int64_t wide = more * (even + 1);
    int64_t index = token < wide ? token / (even + 1) : more + (token - wide) / (even ? even : 1);
    int64_t first = panel_begin(tokens, panels, (int32_t)index);
    return (struct place){first, (int32_t)(token - first), (int32_t)(even + (index < more))};
}

INLINE const float *row_of(const struct tensor *x, int64_t row)
{
    int64_t i1 = row % x->ne[1], rest = row / x->ne[1];
    int64_t i2 = rest % x->ne[2], i3 = rest / x->ne[2];
    return (const float *)((const char *)x->data + i1 * x->nb[1] + i2 * x->nb[2] + i3 * x->nb[3]);
}

/* A block whose inputs are not all finite has NaN as its scale, so that its products are NaN. */
INLINE void quantize_block(const float *x, uint8_t *to, int32_t column, int32_t n)
{
    vf one = vf_load(x), other = vf_load(x + 16);
    float largest = vf_largest(one, other);
    float zero = vf_total(vf_add(vf_mul(one, vf_zero()), vf_mul(other, vf_zero())));
    int is_finite = zero == 0.0f;
    int is_there = is_finite && largest >= SMALLEST;
    float inverse = is_there ? 127.0f / largest : 0.0f;
    float scale = is_there ? largest / 127.0f : zero;
    int8_t *inputs = (int8_t *)to + BLOCK * column;
    int32_t front = 0, back = 0;
    if (is_there) {
        front = vf_store_rounded(inputs, one, inverse);
        back = vf_store_rounded(inputs + 16, other, inverse);
    } else {
        memset(inputs, 0, BLOCK);
    }
    float sum = -scale * (float)(front + back);
    uint8_t *numbers = to + BLOCK * n;
    front = -front;
    back = -back;
    memcpy(numbers + 4 * column, &scale, 4);
    memcpy(numbers + 4 * (n + column), &sum, 4);
    memcpy(numbers + 4 * (2 * n + column), &front, 4);
    memcpy(numbers + 4 * (3 * n + column), &back, 4);
}

/* Panels of tokens for quantized weights: two of few tokens would take longer than one of more than COLUMNS. */
INLINE int32_t quantized_panels(int64_t tokens)
{
    return tokens <= MOST_COLUMNS ? 1 : panel_count(tokens, COLUMNS);
}

static void prepare(struct activations *to, int32_t panels, int64_t inputs)
{
    to->panels = panels;
    to->inputs = inputs;
    for (int i = 0; i < COUNTERS; i++)
        __atomic_store_n(&to->counters[i], 0, __ATOMIC_RELAXED);
}

#if defined(HAS_AMX)
/* Activations for tiles; the threads take parts of the tokens. */
static void pack_gemm(struct tensor *dst, int type, int thread, int threads)
{
    const struct tensor *x = dst->src[0];
    const int64_t inputs = x->ne[0], tokens = x->ne[1] * x->ne[2] * x->ne[3];
    const int planes = planes_of(type);
    uint8_t *panels = (uint8_t *)dst->data + sizeof(struct activations);
    if (thread == 0)
        prepare(dst->data, 0, inputs);
    for (int64_t token = tokens * thread / threads; token < tokens * (thread + 1) / threads; token++) {
        const struct gemm_place place = gemm_place_of(token, tokens);
        put_brain(planes, row_of(x, token), panels + place.first * gemm_row_bytes(planes, inputs), place.tiles,
                  place.column, 0, inputs, inputs);
    }
}
#endif

/* dst: bytes for the activations; src[0]: F32 with whole rows. */
static void quantize(struct tensor *dst, int thread, int threads, void *user)
{
    const struct tensor *x = dst->src[0];
    const int64_t inputs = x->ne[0], tokens = x->ne[1] * x->ne[2] * x->ne[3];
    const int64_t blocks = inputs / BLOCK, all = tokens * blocks;
    const int32_t panels = quantized_panels(tokens);
    uint8_t *panels_at = (uint8_t *)dst->data + sizeof(struct activations);
    (void)user;
#if defined(HAS_AMX)
    if (uses_gemm(TYPE_Q8_0, tokens)) {
        pack_gemm(dst, TYPE_Q8_0, thread, threads); /* the same for all quantized types */
        return;
    }
#endif
    if (thread == 0)
        prepare(dst->data, panels, inputs);
    const int64_t end = all * (thread + 1) / threads;
    for (int64_t i = all * thread / threads; i < end;) {
        int64_t token = i / blocks, b = i % blocks;
        struct place place = place_of(token, tokens, panels);
        uint8_t *panel = panels_at + place.first * blocks * QUANTIZED_BLOCK;
        const float *row = row_of(x, token);
        for (; b < blocks && i < end; b++, i++)
            quantize_block(row + BLOCK * b, panel + b * QUANTIZED_BLOCK * place.width, place.column,
                           place.width);
    }
}

#if defined(BRAIN_PRODUCTS)
INLINE uint32_t brain_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (!(x == x))
        return bits >> 16 | 64; /* the bits that are kept may be none */
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16; /* to nearest, to even */
}
#endif

/* Some inputs of one token, whole blocks of them, to its place in a panel. */
INLINE void put_row(int type, const float *row, uint8_t *panel, struct place place, int64_t first,
                    int64_t last, int64_t inputs)
{
#if defined(BRAIN_PRODUCTS)
    if (type == TYPE_BF16) {
        uint32_t *to = (uint32_t *)panel + place.column;
        for (int64_t k = first; k < last; k += 2)
            to[k / 2 * place.width] = brain_bits(row[k]) | brain_bits(row[k + 1]) << 16;
        return;
    }
#endif
#if defined(HAS_WORDS)
    if (type == TYPE_F16_FIXED) {
        for (int64_t k = first; k < last; k += FIXED)
            fix_block(row + k, words_of(panel, place.width, k / FIXED, inputs / FIXED), place.column);
        return;
    }
#endif
    (void)type;
    (void)inputs;
    float *to = (float *)panel + place.column;
    for (int64_t k = first; k < last; k++)
        to[k * place.width] = row[k];
}

INLINE int32_t columns_of(int type)
{
    return is_floating(type) ? FLOAT_COLUMNS : COLUMNS;
}

/* Into how many panels so many tokens are put. */
INLINE int32_t panels_of(int type, int64_t tokens)
{
    if (is_floating(type) || type == TYPE_F16_FIXED)
        return panel_count(tokens, columns_of(type));
    return quantized_panels(tokens);
}

/* The same for weights that are floats: activations stay floats, or become those of the weights where
 * the processor multiplies these, or integers. Parameter: the layout of the weights. */
static void interleave(struct tensor *dst, int thread, int threads, void *user)
{
    const struct tensor *x = dst->src[0];
    const int64_t inputs = x->ne[0], tokens = x->ne[1] * x->ne[2] * x->ne[3];
    const int32_t type = dst->op_params[OWN_PARAMS], panels = panels_of(type, tokens);
    uint8_t *panels_at = (uint8_t *)dst->data + sizeof(struct activations);
    (void)user;
#if defined(HAS_AMX)
    if (uses_gemm(type, tokens)) {
        pack_gemm(dst, type, thread, threads);
        return;
    }
#endif
    if (thread == 0)
        prepare(dst->data, panels, inputs);
    const int64_t block = activation_block(type), blocks = inputs / block;
    const int64_t row_bytes = activation_row_bytes(type, inputs);
    const int64_t begin = blocks * thread / threads * block, end = blocks * (thread + 1) / threads * block;
    for (int64_t token = 0; token < tokens; token++) {
        struct place place = place_of(token, tokens, panels);
        put_row(type, row_of(x, token), panels_at + place.first * row_bytes, place, begin, end,
                inputs);
    }
}
