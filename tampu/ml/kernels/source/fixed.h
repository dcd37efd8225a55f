/* F16 weights multiplied as 16-bit integers, which some processors do twice as fast as floats.
 *
 * The 64 weights of a row in a block share a power of two as their unit, the 64 inputs of a token another
 * one. Both are such that the sum of the 64 products fits 32 bits whatever they are (Cauchy and Schwarz),
 * and together they round less than ggml does when it turns inputs into halves. Where that is not so,
 * floats are multiplied: for inputs that halves would round less, such as whole numbers, and where
 * numbers of very different size meet in a block, so that many of them would lose what a half keeps.
 */

#define MAX_UNITS 32767.0f   /* of one number */
#define MAX_NORM 46000.0f    /* of 64 numbers: 2^15.5, and what rounding them may add */
#define MIN_HALF 0x1p-24f   /* all halves are multiples of it */
#define ROUGH 0.001953125f    /* an error of a number, relative: 2^-9 */
#define MAX_ROUGH 16         /* numbers of a block that may have a larger one */
#define WEIGHT_ERROR 8.1e-9f  /* of a block's weights when they become integers, relative: 9e-5 squared */
#define AS_HALVES 255         /* instead of the exponent of a block's first row: multiply floats */
#define WORD_BYTES (2 * FIXED * ROWS) /* of a block of a strip */
#define TURNS 4 /* in which a block is multiplied, where several strips are read at once */

/* Where the parts of block `b` of a panel of N tokens are: the floats, which are seldom there, behind
 * all other blocks, so that those are read without gaps. */
struct words {
    int16_t *units;
    float *unit;
    int32_t *is_exact; /* whether the inputs are floats, and the integers zeros */
    float *exact;
};

INLINE struct words words_of(const uint8_t *panel, int64_t n, int64_t b, int64_t blocks)
{
    uint8_t *units = (uint8_t *)panel + b * n * (2 * FIXED + 8), *numbers = units + 2 * FIXED * n;
    uint8_t *exact = (uint8_t *)panel + n * (blocks * (2 * FIXED + 8) + b * 4 * FIXED);
    return (struct words){(int16_t *)units, (float *)numbers, (int32_t *)(numbers + 4 * n), (float *)exact};
}

INLINE float largest_of(const vf *x)
{
    float one = vf_largest(x[0], x[1]), other = vf_largest(x[2], x[3]);
    return one > other ? one : other;
}

/* Zero if all are finite, else NaN. */
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
    float unit = largest * fmaxf(1.0f / MAX_UNITS, sqrtf(vf_total(sum)) / MAX_NORM);
    uint32_t bits;
    memcpy(&bits, &unit, 4);
    bits = (bits + 0x7fffff) & 0x7f800000;
    memcpy(&unit, &bits, 4);
    return unit;
}

/* What numbers lose as integers: how many are rough, and the squares of all errors; beside it the squares
 * of the numbers and of their errors as halves, all in units. */
struct loss {
    int rough;
    float own, halves, size;
};

/* Numbers as units; `to` may be NULL. */
INLINE struct loss to_units(const vf *x, float unit, int16_t *to)
{
    vf factor = vf_splat(1.0f / unit), own = vf_zero(), halves = own, size = own;
    int rough = 0;
    UNROLL for (int i = 0; i < 4; i++)
    {
        vf number = vf_mul(x[i], factor);
        vi whole = vf_to_int(number);
        vf left = vf_sub(number, vf_from_int(whole));
        vf spread = vf_mul(number, vf_splat(8193.0f)); /* 2^13 + 1: eleven bits remain */
        vf lost = vf_sub(number, vf_sub(spread, vf_sub(spread, number)));
        if (to)
            vi_store_words(to + 16 * i, whole);
        rough += vf_count_larger(left, vf_mul(number, vf_splat(ROUGH)));
        own = vf_fma(left, left, own);
        halves = vf_fma(lost, lost, halves);
        size = vf_fma(number, number, size);
    }
    return (struct loss){rough, vf_total(own), vf_total(halves), vf_total(size)};
}

/* One block of a token's inputs; the unit is NaN if not all are finite. */
INLINE void fix_block(const float *inputs, struct words to, int32_t column)
{
    int16_t *units = to.units + FIXED * column;
    vf x[4];
    UNROLL for (int i = 0; i < 4; i++) x[i] = vf_load(inputs + 16 * i);
    float largest = largest_of(x), unit = zero_of(x);
    int32_t is_exact = 0;
    if (unit == 0.0f && largest >= SMALLEST) {
        unit = unit_of(x, largest);
        struct loss loss = to_units(x, unit, units);
        is_exact = loss.rough > MAX_ROUGH || loss.halves < loss.own + WEIGHT_ERROR * loss.size;
        if (is_exact) {
            memset(units, 0, 2 * FIXED);
            memcpy(to.exact + FIXED * column, inputs, 4 * FIXED);
        }
    } else {
        memset(units, 0, 2 * FIXED);
    }
    memcpy(to.unit + column, &unit, 4);
    memcpy(to.is_exact + column, &is_exact, 4);
}

INLINE vf units_of_rows(const uint8_t *exponents)
{
    return vf_as_float(vi_left(vi_load_u8(exponents), 23));
}

/* One over the unit of each row. */
INLINE vf scale_of_rows(const uint8_t *exponents)
{
    return vf_as_float(vi_left(vi_sub(vi_splat(254), vi_load_u8(exponents)), 23));
}

/* Halves of two inputs as pairs of integers. */
INLINE vi pairs_of(const uint8_t *w, vf scale)
{
    return vi_pair_words(vf_units(vf_load_half(w), scale), vf_units(vf_load_half(w + 2 * ROWS), scale));
}

/* All blocks of a strip, but those that are multiplied as floats. */
static void prepare_fixed(const uint8_t *strip, int64_t inputs, uint8_t *to)
{
    const uint8_t *w = strip + inputs / FIXED * ROWS;
    for (int64_t b = 0; b < inputs / FIXED; b++)
        if (strip[b * ROWS] != AS_HALVES) {
            const vf scale = scale_of_rows(strip + b * ROWS);
            for (int64_t k = b * WORD_BYTES; k < (b + 1) * WORD_BYTES; k += 64)
                vi_store(to + k, pairs_of(w + k, scale));
        }
}

/* Add the products of some inputs' weights, prepared or not, with the integers of N tokens: those of the pairs
 * of inputs `first` to `last` of a block. */
INLINE void add_words(int n, const uint8_t *w, int is_prepared, const uint8_t *exponents, const struct words *x,
                      int first, int last, vi *dots, struct fetch fetch)
{
    const vf scale = scale_of_rows(exponents);
    for (int j = first; j < last; j += 4)
        UNROLL for (int k = j; k < j + 4; k++)
        {
            if (!is_prepared)
                prefetch(n, w + 64 * k, fetch);
            vi weights = is_prepared ? vi_load(w + 64 * k) : pairs_of(w + 64 * k, scale);
            UNROLL for (int c = 0; c < n; c++)
                dots[c] = vi_dot_words(dots[c], weights, x->units + FIXED * c + 2 * k);
        }
}

INLINE void add_dots_of_words(int n, const vi *dots, const uint8_t *exponents, const struct words *x, vf *sum)
{
    const vf unit = units_of_rows(exponents);
    UNROLL for (int c = 0; c < n; c++)
        sum[c] = vf_fma(vf_from_int(dots[c]), vf_mul(unit, vf_splat(x->unit[c])), sum[c]);
}

/* The same for weights that are multiplied as floats. */
INLINE void multiply_as_floats(int n, const uint8_t *w, const struct words *x, vf *sum)
{
    for (int k = 0; k < FIXED; k++) {
        vf weights = vf_load_half(w + 2 * ROWS * k);
        UNROLL for (int c = 0; c < n; c++)
            sum[c] = vf_fma(weights, vf_splat(x->units[FIXED * c + k] * x->unit[c]), sum[c]);
    }
}

/* A block of weights times a token's inputs, as floats. */
static __attribute__((noinline)) vf exact_product(const uint8_t *w, const float *x)
{
    vf sum[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    for (int k = 0; k < FIXED; k += 4)
        UNROLL for (int i = 0; i < 4; i++)
            sum[i] = vf_fma(vf_load_half(w + 2 * ROWS * (k + i)), vf_splat(x[k + i]), sum[i]);
    return vf_add(vf_add(sum[0], sum[1]), vf_add(sum[2], sum[3]));
}

INLINE int any_exact(int n, const int32_t *is_exact)
{
    int32_t any = 0;
    UNROLL for (int c = 0; c < n; c++) any |= is_exact[c];
    return any;
}

/* What integers do not say of a block of weights times a panel. */
INLINE void add_exact(int n, const uint8_t *w, int as_halves, const struct words *x, vf *sum)
{
    if (as_halves)
        multiply_as_floats(n, w, x, sum);
    if (any_exact(n, x->is_exact))
        UNROLL for (int c = 0; c < n; c++)
            if (x->is_exact[c])
                sum[c] = vf_add(sum[c], exact_product(w, x->exact + FIXED * c));
}

/* Neighbouring strips times a panel; `prepared` are the integers of the one strip, or NULL. */
INLINE void fixed_strips(int type, int n, int strips, const uint8_t *w, const uint8_t *prepared,
                         const uint8_t *panel, int64_t inputs, float *out, int64_t stride, int rows,
                         struct fetch fetch)
{
    const int64_t blocks = inputs / FIXED;
    const size_t strip_bytes = strip_bytes_of(type, inputs);
    const int turn = strips > 1 ? FIXED / 2 / TURNS : FIXED / 2; /* pairs of inputs of one strip at a time */
    vf sum[STREAMS][COLUMNS];
    for (int s = 0; s < strips; s++)
        UNROLL for (int c = 0; c < n; c++) sum[s][c] = vf_zero();
    for (int64_t b = 0; b < blocks; b++) {
        const struct fetch here = fetch_of(fetch, strips, strip_bytes, (size_t)((blocks - b) * WORD_BYTES));
        const struct words x = words_of(panel, n, b, blocks);
        vi dots[STREAMS][COLUMNS];
        for (int s = 0; s < strips; s++)
            UNROLL for (int c = 0; c < n; c++) dots[s][c] = vi_splat(0);
        for (int first = 0; first < FIXED / 2; first += turn)
            for (int s = 0; s < strips; s++) {
                const uint8_t *strip = w + (size_t)s * strip_bytes, *exponents = strip + b * ROWS;
                const uint8_t *halves = prepared ? prepared : strip + blocks * ROWS;
                if (*exponents != AS_HALVES)
                    add_words(n, halves + b * WORD_BYTES, prepared != NULL, exponents, &x, first, first + turn,
                              dots[s], here);
            }
        for (int s = 0; s < strips; s++) {
            const uint8_t *strip = w + (size_t)s * strip_bytes, *exponents = strip + b * ROWS;
            if (n <= FEW && b * ROWS % 64 == 0) /* the next strips' exponents are in no stream of weights */
                __builtin_prefetch(exponents + (size_t)strips * strip_bytes, 0, 2);
            if (*exponents != AS_HALVES)
                add_dots_of_words(n, dots[s], exponents, &x, sum[s]);
            add_exact(n, strip + blocks * ROWS + b * WORD_BYTES, *exponents == AS_HALVES, &x, sum[s]);
        }
    }
    for (int s = 0; s < strips; s++)
        store_tile(n, sum[s], out + s * ROWS, stride, rows - s * ROWS);
}

/* The exponent of the unit of a row's 64 weights, AS_HALVES if they are multiplied as floats. */
INLINE int exponent_of(const uint8_t *halves)
{
    vf x[4];
    UNROLL for (int i = 0; i < 4; i++) x[i] = vf_load_half(halves + 32 * i);
    if (zero_of(x) != 0.0f)
        return AS_HALVES;
    float largest = largest_of(x), unit = largest > 0.0f ? unit_of(x, largest) : 0.0f;
    uint32_t bits;
    unit = fmaxf(unit, MIN_HALF);
    memcpy(&bits, &unit, 4);
    return to_units(x, unit, NULL).rough > MAX_ROUGH ? AS_HALVES : (int)(bits >> 23);
}

/* A block of up to sixteen rows, input by input; by way of neighbours, since rows that are a power of two
 * apart push each other out of the first cache. */
INLINE void turn_halves(const uint8_t *from, size_t row_bytes, int64_t rows, uint8_t *to)
{
    uint16_t halves[ROWS][FIXED], turned[FIXED][ROWS];
    memset(halves, 0, sizeof halves);
    for (int64_t row = 0; row < rows; row++)
        memcpy(halves[row], from + (size_t)row * row_bytes, sizeof halves[row]);
    for (int k = 0; k < FIXED; k++)
        for (int row = 0; row < ROWS; row++)
            turned[k][row] = halves[row][k];
    memcpy(to, turned, sizeof turned);
}

/* Some strips of a matrix of halves: exponents for all blocks, then the halves, input by input. */
static void pack_fixed(const void *source, void *packed, int64_t rows, int64_t inputs, int64_t first_strip,
                       int64_t strips)
{
    const int64_t blocks = inputs / FIXED;
    const size_t row_bytes = (size_t)inputs * 2;
    for (int64_t strip = first_strip; strip < first_strip + strips; strip++) {
        uint8_t *exponents = (uint8_t *)packed + (size_t)strip * strip_bytes_of(TYPE_F16_FIXED, inputs);
        uint8_t *to = exponents + blocks * ROWS;
        const uint8_t *from = (const uint8_t *)source + (size_t)(strip * ROWS) * row_bytes;
        const int64_t left = rows - strip * ROWS, there = left < ROWS ? left : ROWS;
        memset(exponents, 127, (size_t)(blocks * ROWS));
        for (int64_t row = 0; row < there; row++, from += row_bytes) {
            for (int64_t b = 0; b < blocks; b++) {
                int exponent = exponent_of(from + 2 * FIXED * b);
                if (exponent == AS_HALVES)
                    exponents[b * ROWS] = AS_HALVES;
                else if (row == 0 || exponents[b * ROWS] != AS_HALVES)
                    exponents[b * ROWS + row] = (uint8_t)exponent;
            }
        }
        from -= there * (int64_t)row_bytes;
        for (int64_t b = 0; b < blocks; b++, to += WORD_BYTES)
            turn_halves(from + 2 * FIXED * b, row_bytes, there, to);
    }
}
