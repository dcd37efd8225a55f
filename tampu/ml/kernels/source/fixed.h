/* F16 weights as 16-bit integers, where the processor multiplies these twice as fast as floats.
 *
 * The 64 weights of a row in a block share a power of two, the 64 inputs of a token another one. Both are
 * such that the sum of the 64 products fits 32 bits whatever they are (Cauchy and Schwarz), and together
 * they round less than ggml does when it turns activations into halves. Where numbers of very different size meet in a
 * block, many of them would lose what a half keeps: such weights stay halves and are multiplied as
 * floats; such inputs get a second integer for what the first one leaves.
 */

#define MOST_UNITS 32767.0f /* of one number */
#define MOST_NORM 46000.0f  /* of 64 numbers: 2^15.5, and what rounding them may add */
#define LOW_PARTS 4096.0f   /* of a unit of the first integer are a unit of the second */
#define ROUGH 0.001953125f  /* an error of a number, relative: 2^-9 */
#define MOST_ROUGH 16       /* numbers of a block that may have a larger one */
#define LEAST_HALF 0x1p-24f /* all halves are multiples of it */
#define AS_HALVES 255       /* instead of the exponent of a block's first row */

/* Where the parts of a block of N tokens are. */
struct words {
    const int16_t *high, *low;
    const float *scale;
    const int32_t *is_wide; /* whether the second integers count; zeros, if not */
};

INLINE struct words words_of(const uint8_t *block, int n)
{
    const uint8_t *numbers = block + 2 * FIXED * n;
    return (struct words){(const int16_t *)block, (const int16_t *)(numbers + 8 * n), (const float *)numbers,
                          (const int32_t *)(numbers + 4 * n)};
}

INLINE float largest_of(const vf *x)
{
    float one = vf_largest(x[0], x[1]), other = vf_largest(x[2], x[3]);
    return one > other ? one : other;
}

/* Zero, if all are finite; else no number. */
INLINE float zero_of(const vf *x)
{
    vf sum = vf_zero();
    UNROLL for (int i = 0; i < 4; i++) sum = vf_fma(x[i], vf_zero(), sum);
    return vf_total(sum);
}

/* The least power of two that can be the unit of numbers, of which the largest is given. */
INLINE float unit_of(const vf *x, float largest)
{
    vf sum = vf_zero(), factor = vf_splat(1.0f / largest);
    UNROLL for (int i = 0; i < 4; i++)
    {
        vf part = vf_mul(x[i], factor);
        sum = vf_fma(part, part, sum);
    }
    float unit = largest * fmaxf(1.0f / MOST_UNITS, sqrtf(vf_total(sum)) / MOST_NORM);
    uint32_t bits;
    memcpy(&bits, &unit, 4);
    bits = (bits + 0x7fffff) & 0x7f800000;
    memcpy(&unit, &bits, 4);
    return unit;
}

/* Store numbers as units, and what is left of them as parts of a unit if there is a place for it; return
 * how many are rough. */
INLINE int store_words(const vf *x, float unit, int16_t *high, int16_t *low)
{
    const float factor = 1.0f / unit;
    int rough = 0;
    UNROLL for (int i = 0; i < 4; i++)
    {
        vf exact = vf_mul(x[i], vf_splat(factor));
        vi whole = vf_to_int(exact);
        vf left = vf_sub(exact, vf_from_int(whole));
        vi_store_words(high + 16 * i, whole);
        if (low)
            vi_store_words(low + 16 * i, vf_to_int(vf_mul(left, vf_splat(LOW_PARTS))));
        rough += vf_count_larger(left, vf_mul(exact, vf_splat(ROUGH)));
    }
    return rough;
}

/* One block of a token's inputs; with a scale that is no number, if not all are finite. */
INLINE void fix_block(const float *inputs, uint8_t *block, int32_t column, int32_t n)
{
    const struct words to = words_of(block, n);
    int16_t *high = (int16_t *)to.high + FIXED * column, *low = (int16_t *)to.low + FIXED * column;
    vf x[4];
    UNROLL for (int i = 0; i < 4; i++) x[i] = vf_load(inputs + 16 * i);
    float largest = largest_of(x), scale = zero_of(x);
    int32_t is_wide = 0;
    if (scale == 0.0f && largest >= SMALLEST) {
        scale = unit_of(x, largest);
        is_wide = store_words(x, scale, high, low) > MOST_ROUGH;
    } else {
        memset(high, 0, 2 * FIXED);
    }
    if (!is_wide)
        memset(low, 0, 2 * FIXED);
    memcpy((float *)to.scale + column, &scale, 4);
    memcpy((int32_t *)to.is_wide + column, &is_wide, 4);
}

/* Add the products of one block of weights with integers of N tokens. */
INLINE void multiply_words(int n, const uint8_t *w, const int16_t *x, vf weight_scale, const float *scale,
                           vf *sum)
{
    vi dots[COLUMNS];
    UNROLL for (int c = 0; c < n; c++) dots[c] = vi_splat(0);
    for (int j = 0; j < FIXED / 2; j += 4)
        UNROLL for (int k = j; k < j + 4; k++)
        {
            vi weights = vi_load(w + 64 * k);
            prefetch(n, w + 64 * k);
            UNROLL for (int c = 0; c < n; c++)
                dots[c] = vi_dot_words(dots[c], weights, x + FIXED * c + 2 * k);
        }
    UNROLL for (int c = 0; c < n; c++)
        sum[c] = vf_fma(vf_from_int(dots[c]), vf_mul(weight_scale, vf_splat(scale[c])), sum[c]);
}

/* The same for a block of weights that are still halves. */
INLINE void multiply_halves_of(int n, const uint8_t *w, const struct words *x, vf *sum)
{
    for (int k = 0; k < FIXED; k++) {
        vf weights = vf_load_half(w + 2 * ROWS * k);
        UNROLL for (int c = 0; c < n; c++)
        {
            float high = x->high[FIXED * c + k], low = x->low[FIXED * c + k];
            sum[c] = vf_fma(weights, vf_splat((high + low / LOW_PARTS) * x->scale[c]), sum[c]);
        }
    }
}

INLINE int any_wide(int n, const int32_t *is_wide)
{
    int32_t any = 0;
    UNROLL for (int c = 0; c < n; c++) any |= is_wide[c];
    return any;
}

INLINE void fixed_tile(int type, int n, const uint8_t *w, const uint8_t *panel, int64_t inputs, float *out,
                       int64_t stride, int rows)
{
    const uint8_t *exponents = w;
    vf sum[COLUMNS];
    (void)type;
    UNROLL for (int c = 0; c < n; c++) sum[c] = vf_zero();
    w += inputs / FIXED * ROWS;
    for (int64_t b = inputs / FIXED; b > 0; b--) {
        const struct words x = words_of(panel, n);
        if (*exponents == AS_HALVES) {
            multiply_halves_of(n, w, &x, sum);
        } else {
            vf scale = vf_as_float(vi_left(vi_load_u8(exponents), 23));
            multiply_words(n, w, x.high, scale, x.scale, sum);
            if (any_wide(n, x.is_wide))
                multiply_words(n, w, x.low, vf_mul(scale, vf_splat(1.0f / LOW_PARTS)), x.scale, sum);
        }
        exponents += ROWS;
        w += 2 * FIXED * ROWS;
        panel += FIXED_BLOCK * n;
    }
    store_tile(n, sum, out, stride, rows);
}

/* A row's 64 weights as integers; return the exponent of their unit, AS_HALVES if they lose too much. */
INLINE int fix_weights(const uint8_t *halves, int16_t *words)
{
    vf x[4];
    UNROLL for (int i = 0; i < 4; i++) x[i] = vf_load_half(halves + 32 * i);
    if (zero_of(x) != 0.0f)
        return AS_HALVES;
    float largest = largest_of(x), unit = largest > 0.0f ? unit_of(x, largest) : 0.0f;
    uint32_t bits;
    unit = fmaxf(unit, LEAST_HALF);
    memcpy(&bits, &unit, 4);
    return store_words(x, unit, words, NULL) > MOST_ROUGH ? AS_HALVES : (int)(bits >> 23);
}

/* A block of a strip, of which so many rows are there. */
static void pack_fixed_block(const uint8_t *from, size_t row_bytes, int there, uint8_t *exponents, uint8_t *to)
{
    int16_t words[ROWS][FIXED] = {{0}};
    int is_rough = 0;
    for (int row = 0; row < ROWS; row++) {
        int exponent = row < there ? fix_weights(from + row * row_bytes, words[row]) : 127;
        is_rough |= exponent == AS_HALVES;
        exponents[row] = (uint8_t)exponent;
    }
    if (!is_rough) {
        for (int row = 0; row < ROWS; row++)
            for (int k = 0; k < FIXED; k += 2)
                memcpy(to + 2 * ROWS * k + 4 * row, &words[row][k], 4);
        return;
    }
    exponents[0] = AS_HALVES;
    memset(to, 0, 2 * FIXED * ROWS);
    for (int row = 0; row < there; row++)
        for (int k = 0; k < FIXED; k++)
            memcpy(to + 2 * (ROWS * k + row), from + row * row_bytes + 2 * k, 2);
}

/* Some strips of a matrix of halves. */
static void pack_fixed(const void *source, void *packed, int64_t rows, int64_t inputs, int64_t first_strip,
                       int64_t strips)
{
    const int64_t blocks = inputs / FIXED;
    const size_t row_bytes = (size_t)inputs * 2;
    for (int64_t strip = first_strip; strip < first_strip + strips; strip++) {
        const uint8_t *from = (const uint8_t *)source + (size_t)(strip * ROWS) * row_bytes;
        uint8_t *exponents = (uint8_t *)packed + (size_t)strip * strip_bytes_of(TYPE_F16_FIXED, inputs);
        uint8_t *to = exponents + blocks * ROWS;
        const int64_t left = rows - strip * ROWS;
        for (int64_t b = 0; b < blocks; b++)
            pack_fixed_block(from + b * 2 * FIXED, row_bytes, left < ROWS ? (int)left : ROWS,
                             exponents + b * ROWS, to + b * 2 * FIXED * ROWS);
    }
}
