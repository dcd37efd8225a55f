/* Products with quantized weights: sixteen rows by up to COLUMNS tokens at a time.
 *
 * A tile keeps one integer and one float accumulator per token. In a block of 32 inputs the integers
 * gather eight vectors of weights; then the block's scales turn them into floats. What is subtracted
 * from weights (8 of Q4_0) enters through the precomputed sum of the activations, as the integers'
 * first value; what is added per block (the minimum of Q4_K) through their scaled sum.
 */

static const int8_t IQ4_NL_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                         1,    13,   25,  38,  53,  69,  89,  113};
/* Twice the values of FP4, plus 12. */
static const int8_t FP4_VALUES[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

#define FEW 4         /* tokens up to which several strips are read at once: the sums of more are too many */
#define STREAMS 16    /* strips that can be read at once */
#define PREFETCH 4096 /* bytes ahead in the weights, which are read from beginning to end */

/* Ask for the weights behind those at `w`. What few tokens multiply by comes from memory, where processors
 * differ in what is fastest; the hint is part of the instruction, so each has its own. */
INLINE void prefetch(int n, const uint8_t *w, struct fetch fetch)
{
    if (n > FEW) {
        __builtin_prefetch(w + PREFETCH, 0, 3);
        return;
    }
    switch (fetch.hint) {
    case FETCH_NTA: __builtin_prefetch(w + fetch.ahead, 0, 0); break;
    case FETCH_T2: __builtin_prefetch(w + fetch.ahead, 0, 1); break;
    case FETCH_T1: __builtin_prefetch(w + fetch.ahead, 0, 2); break;
    case FETCH_T0: __builtin_prefetch(w + fetch.ahead, 0, 3); break;
    default: break;
    }
}

/* The numbers behind the quantized inputs of a block of N tokens. */
struct numbers {
    const float *scale;      /* of the inputs */
    const float *scaled_sum; /* minus scale times the sum of all inputs */
    const int32_t *front;    /* minus the sum of the first sixteen inputs */
    const int32_t *back;     /* minus the sum of the others */
};

INLINE struct numbers numbers_of(const uint8_t *block, int n)
{
    const uint8_t *at = block + BLOCK * n;
    return (struct numbers){(const float *)at, (const float *)(at + 4 * n),
                            (const int32_t *)(at + 8 * n), (const int32_t *)(at + 12 * n)};
}

/* sum * zero, for the few zero points there are. */
INLINE vi times_zero_point(vi sum, int zero)
{
    switch (zero) {
    case 8: return vi_left(sum, 3);
    case 12: return vi_add(vi_left(sum, 3), vi_left(sum, 2));
    case 16: return vi_left(sum, 4);
    case 32: return vi_left(sum, 5);
    case 128: return vi_left(sum, 7);
    default: return vi_splat(0);
    }
}

INLINE int zero_point(int type)
{
    switch (type) {
    case TYPE_Q4_0: return 8;
    case TYPE_Q5_0: return 16;
    case TYPE_Q6_K: return 32;
    case TYPE_MXFP4: return 12;
    case TYPE_Q8_0: case TYPE_IQ4_NL: return SIGNED_BIAS;
    default: return 0;
    }
}

/* The weights of vector j (inputs 4 j to 4 j + 3) and of vector j + 4, from one vector of nibbles. */
INLINE void weights_of(int type, const uint8_t *nibbles, vi table, const vi *planes, int j, vi *front,
                       vi *back)
{
    if (type == TYPE_Q8_0) {
        *front = vi_signed_weights(vi_load(nibbles + 64 * j));
        *back = vi_signed_weights(vi_load(nibbles + 64 * (j + 4)));
        return;
    }
    vi low = vi_splat8(15), both = vi_load(nibbles + 64 * j);
    *front = vi_and(both, low);
    *back = vi_and(vi_right(both, 4), low);
    if (type == TYPE_Q5_0 || type == TYPE_Q5_K) {
        vi fifth = vi_splat8(16);
        *front = vi_or(*front, vi_and(vi_left(planes[0], 4 - j), fifth));
        *back = vi_or(*back, vi_and(j ? vi_right(planes[0], j) : planes[0], fifth));
    }
    if (type == TYPE_Q6_K) {
        vi upper = vi_splat8(48);
        int shift = 4 - 2 * j;
        *front = vi_or(*front, vi_and(shift > 0 ? vi_left(planes[0], shift) : vi_right(planes[0], -shift), upper));
        *back = vi_or(*back, vi_and(shift > 0 ? vi_left(planes[1], shift) : vi_right(planes[1], -shift), upper));
    }
    if (type == TYPE_IQ4_NL || type == TYPE_MXFP4) {
        *front = vi_lookup(table, *front);
        *back = vi_lookup(table, *back);
    }
}

INLINE int has_minimum(int type)
{
    return type == TYPE_Q4_1 || type == TYPE_Q4_K || type == TYPE_Q5_K;
}

/* What a group of weights says of the block that is next: where its vectors are, and its scales. */
struct block {
    const uint8_t *nibbles;
    vi planes[2];
    vf scale, scale_back; /* scale_back: of inputs 16..31, where they have their own */
    vf minimum;
};

/* What a group of a K type begins with, and its scales. */
INLINE size_t head_bytes(int type)
{
    return group_inputs(type) == BLOCK ? 0 : has_minimum(type) ? 4 * ROWS : 2 * ROWS;
}

INLINE void read_head(int type, const uint8_t *w, vf *scale, vf *minimum)
{
    *scale = head_bytes(type) ? vf_load_half(w) : vf_zero();
    *minimum = head_bytes(type) && has_minimum(type) ? vf_load_half(w + 2 * ROWS) : vf_zero();
}

INLINE void read_block(int type, const uint8_t *w, vf scale, vf minimum, struct block *b)
{
    b->scale_back = b->minimum = vf_zero();
    switch (type) {
    case TYPE_Q4_0: case TYPE_IQ4_NL: case TYPE_Q8_0:
        b->scale = vf_load_half(w);
        w += 2 * ROWS;
        break;
    case TYPE_MXFP4: /* the values are doubled, the exponent stands for a power of two */
        b->scale = vf_mul(vf_as_float(vi_left(vi_load_u8(w), 23)), vf_splat(0.5f));
        w += ROWS;
        break;
    case TYPE_Q4_1: /* the sums are negative, hence so is this minimum */
        b->scale = vf_load_half(w);
        b->minimum = vf_mul(vf_load_half(w + 2 * ROWS), vf_splat(-1.0f));
        w += 4 * ROWS;
        break;
    case TYPE_Q5_0:
        b->scale = vf_load_half(w);
        b->planes[0] = vi_load(w + 2 * ROWS);
        w += 6 * ROWS;
        break;
    case TYPE_Q4_K: case TYPE_Q5_K:
        b->scale = vf_mul(scale, vf_from_int(vi_load_u8(w)));
        b->minimum = vf_mul(minimum, vf_from_int(vi_load_u8(w + ROWS)));
        w += 2 * ROWS;
        if (type == TYPE_Q5_K) {
            b->planes[0] = vi_load(w);
            w += 4 * ROWS;
        }
        break;
    case TYPE_Q6_K:
        b->scale = vf_mul(scale, vf_from_int(vi_load_i8(w)));
        b->scale_back = vf_mul(scale, vf_from_int(vi_load_i8(w + ROWS)));
        b->planes[0] = vi_load(w + 2 * ROWS);
        b->planes[1] = vi_load(w + 6 * ROWS);
        w += 10 * ROWS;
        break;
    }
    b->nibbles = w;
}

INLINE vi dot_of(int type, vi sum, vi weights, const int8_t *four)
{
    int is_signed = type == TYPE_Q8_0 || type == TYPE_IQ4_NL;
    return is_signed ? vi_dot_signed(sum, weights, four) : vi_dot(sum, weights, four);
}

/* Add to `dots` the products of N tokens with sixteen rows: inputs 0..15 of a block, 16..31, or both. */
INLINE void add_dots(int type, int n, const struct block *b, vi table, const int8_t *inputs, int front,
                     int back, vi *dots)
{
    vi one, other;
    UNROLL for (int j = 0; j < 4; j++)
    {
        weights_of(type, b->nibbles, table, b->planes, j, &one, &other);
        UNROLL for (int c = 0; front && c < n; c++)
            dots[c] = dot_of(type, dots[c], one, inputs + BLOCK * c + 4 * j);
        UNROLL for (int c = 0; back && c < n; c++)
            dots[c] = dot_of(type, dots[c], other, inputs + BLOCK * c + 16 + 4 * j);
    }
}

#if defined(PAIR_PRODUCTS)
/* The same by two tokens and eight inputs at once; what is left over is one token. */
INLINE void add_pair_dots(int type, int n, const struct block *b, vi table, const int8_t *inputs,
                          int front, int back, vi *dots)
{
    vp pairs[MOST_COLUMNS / 2 + 1];
    UNROLL for (int c = 0; c + 1 < n; c += 2) pairs[c / 2] = vp_zero();
    UNROLL for (int j = 0; j < 4; j += 2)
    {
        vi one[2], other[2];
        weights_of(type, b->nibbles, table, b->planes, j, &one[0], &other[0]);
        weights_of(type, b->nibbles, table, b->planes, j + 1, &one[1], &other[1]);
        const vp fronts = vp_weights(one[0], one[1]), backs = vp_weights(other[0], other[1]);
        UNROLL for (int c = 0; c + 1 < n; c += 2)
        {
            const int8_t *first = inputs + BLOCK * c + 4 * j, *second = first + BLOCK;
            if (front)
                pairs[c / 2] = vp_dot(pairs[c / 2], fronts, first, second);
            if (back)
                pairs[c / 2] = vp_dot(pairs[c / 2], backs, first + 16, second + 16);
        }
    }
    UNROLL for (int c = 0; c + 1 < n; c += 2) vp_part(pairs[c / 2], &dots[c], &dots[c + 1]);
    if (n % 2)
        add_dots(type, 1, b, table, inputs + BLOCK * (n - 1), front, back, dots + n - 1);
}
#define ADD_DOTS add_pair_dots
#else
#define ADD_DOTS add_dots
#endif

/* Add to `sum` the products of one block of weights with one block of N tokens. */
INLINE void multiply_block(int type, int n, const struct block *b, vi table, const uint8_t *tokens,
                           vf *sum)
{
    struct numbers numbers = numbers_of(tokens, n);
    vi dots[MOST_COLUMNS];
    UNROLL for (int c = 0; c < n; c++)
    {
        dots[c] = vi_splat(0);
        if (zero_point(type)) {
            dots[c] = vi_add(vi_splat(numbers.front[c]), vi_splat(numbers.back[c]));
            dots[c] = times_zero_point(dots[c], zero_point(type));
        }
    }
    ADD_DOTS(type, n, b, table, (const int8_t *)tokens, 1, 1, dots);
    UNROLL for (int c = 0; c < n; c++)
    {
        vf scale = vf_mul(b->scale, vf_splat(numbers.scale[c]));
        sum[c] = vf_fma(vf_from_int(dots[c]), scale, sum[c]);
        if (has_minimum(type))
            sum[c] = vf_fma(b->minimum, vf_splat(numbers.scaled_sum[c]), sum[c]);
    }
}

/* The same for a type with a scale for each sixteen inputs: one half after the other, so that the
 * accumulators of one half fit the registers. */
INLINE void multiply_halves(int type, int n, const struct block *b, vi table, const uint8_t *tokens,
                            vf *sum)
{
    struct numbers numbers = numbers_of(tokens, n);
    UNROLL for (int half = 0; half < 2; half++)
    {
        const int32_t *sums = half ? numbers.back : numbers.front;
        vi dots[MOST_COLUMNS];
        UNROLL for (int c = 0; c < n; c++)
            dots[c] = times_zero_point(vi_splat(sums[c]), zero_point(type));
        ADD_DOTS(type, n, b, table, (const int8_t *)tokens, !half, half, dots);
        UNROLL for (int c = 0; c < n; c++)
        {
            vf scale = vf_mul(half ? b->scale_back : b->scale, vf_splat(numbers.scale[c]));
            sum[c] = vf_fma(vf_from_int(dots[c]), scale, sum[c]);
        }
    }
}

INLINE void store_tile(int n, const vf *sum, float *out, int64_t stride, int rows)
{
    UNROLL for (int c = 0; c < n; c++)
    {
        if (rows >= ROWS)
            vf_store(out + c * stride, sum[c]);
        else
            vf_store_first(out + c * stride, sum[c], rows);
    }
}

/* Strips that a tile multiplies at once: more than one for few tokens, whose weights come from memory. */
INLINE int streams_of(int n, int rows)
{
    return n > FEW ? 1 : (rows + ROWS - 1) / ROWS;
}

/* How to read a part of each strip, of which so many bytes are left: what is behind the strips' ends was read
 * already, as the beginning of the next one, so that the strips of the next tile are asked for instead. */
INLINE struct fetch fetch_of(struct fetch fetch, int strips, size_t strip_bytes, size_t left)
{
    if (left <= (size_t)fetch.ahead)
        fetch.ahead += (int32_t)((size_t)(strips - 1) * strip_bytes);
    return fetch;
}

/* Neighbouring strips of weights times one panel of N tokens, block by block of all of them. */
INLINE void quantized_strips(int type, int n, int strips, const uint8_t *w, const uint8_t *prepared,
                             const uint8_t *panel, int64_t inputs, float *out, int64_t stride, int rows,
                             struct fetch fetch)
{
    (void)prepared;
    const int blocks = group_inputs(type) / BLOCK;
    const size_t bytes = group_bytes(type), strip_bytes = strip_bytes_of(type, inputs);
    const size_t block_bytes = (bytes - head_bytes(type)) / (size_t)blocks;
    vi table = type == TYPE_IQ4_NL ? vi_signed_weights(vi_table(IQ4_NL_VALUES))
                                   : vi_table(FP4_VALUES);
    vf sum[STREAMS][MOST_COLUMNS], scale[STREAMS], minimum[STREAMS];
    for (int s = 0; s < strips; s++)
        UNROLL for (int c = 0; c < n; c++) sum[s][c] = vf_zero();
    for (int64_t g = inputs / group_inputs(type); g > 0; g--, w += bytes) {
        const struct fetch here = fetch_of(fetch, strips, strip_bytes, (size_t)g * bytes);
        for (int s = 0; s < strips; s++)
            read_head(type, w + (size_t)s * strip_bytes, &scale[s], &minimum[s]);
        for (int i = 0; i < blocks; i++, panel += QUANTIZED_BLOCK * n)
            for (int s = 0; s < strips; s++) {
                const uint8_t *at = w + (size_t)s * strip_bytes + head_bytes(type) + (size_t)i * block_bytes;
                struct block b;
                for (size_t ahead = 0; ahead < block_bytes; ahead += 64)
                    prefetch(n, at + ahead, here);
                read_block(type, at, scale[s], minimum[s], &b);
                if (type == TYPE_Q6_K)
                    multiply_halves(type, n, &b, table, panel, sum[s]);
                else
                    multiply_block(type, n, &b, table, panel, sum[s]);
            }
    }
    for (int s = 0; s < strips; s++)
        store_tile(n, sum[s], out + s * ROWS, stride, rows - s * ROWS);
}

/* Sixteen inputs of a strip of halves or brain floats by N tokens. */
INLINE void multiply_floats(int type, int n, const uint8_t *w, const float *x, vf *sum, struct fetch fetch)
{
    for (int k = 0; k < FLOATS; k += 2, w += 4 * ROWS, x += 2 * n) {
        vf one, other;
        prefetch(n, w, fetch);
        if (type == TYPE_F16) {
            one = vf_load_half(w);
            other = vf_load_half(w + 2 * ROWS);
        } else {
            vi pairs = vi_load(w);
            one = vf_as_float(vi_left(pairs, 16));
            other = vf_as_float(vi_and(pairs, vi_splat((int32_t)0xffff0000)));
        }
        UNROLL for (int c = 0; c < n; c++)
            sum[c] = vf_fma(one, vf_splat(x[c]), sum[c]);
        UNROLL for (int c = 0; c < n; c++)
            sum[c] = vf_fma(other, vf_splat(x[n + c]), sum[c]);
    }
}

#if defined(BRAIN_PRODUCTS)
/* The same with brain floats on both sides: pairs of inputs of N tokens after those of the pair before. */
INLINE void multiply_brains(int n, const uint8_t *w, const uint32_t *x, vf *sum, struct fetch fetch)
{
    for (int k = 0; k < FLOATS; k += 2, w += 4 * ROWS, x += n) {
        vi pairs = vi_load(w);
        prefetch(n, w, fetch);
        UNROLL for (int c = 0; c < n; c++)
            sum[c] = vf_dot_pair(sum[c], pairs, x[c]);
    }
}
#define IS_BRAIN(type) ((type) == TYPE_BF16)
#else
#define IS_BRAIN(type) 0
#define multiply_brains(n, w, x, sum, fetch) (void)0
#endif

/* Half and brain floats: activations are floats, N tokens of one input after those of the one before. */
INLINE void float_strips(int type, int n, int strips, const uint8_t *w, const uint8_t *prepared,
                         const uint8_t *panel, int64_t inputs, float *out, int64_t stride, int rows,
                         struct fetch fetch)
{
    (void)prepared;
    const size_t strip_bytes = strip_bytes_of(type, inputs);
    vf sum[STREAMS][FLOAT_COLUMNS];
    for (int s = 0; s < strips; s++)
        UNROLL for (int c = 0; c < n; c++) sum[s][c] = vf_zero();
    for (int64_t k = 0; k < inputs; k += FLOATS, w += 2 * ROWS * FLOATS) {
        const struct fetch here = fetch_of(fetch, strips, strip_bytes, (size_t)(inputs - k) * 2 * ROWS);
        for (int s = 0; s < strips; s++) {
            const uint8_t *at = w + (size_t)s * strip_bytes;
            if (IS_BRAIN(type))
                multiply_brains(n, at, (const uint32_t *)panel + k / 2 * n, sum[s], here);
            else
                multiply_floats(type, n, at, (const float *)panel + k * n, sum[s], here);
        }
    }
    for (int s = 0; s < strips; s++)
        store_tile(n, sum[s], out + s * ROWS, stride, rows - s * ROWS);
}
