/* Sixteen lanes in plain C: the reference that the tests compare with, and what any processor runs. */
#define COLUMNS 4
#define SCORE_ROWS 1
#define SIGNED_BIAS 0

typedef struct { uint32_t lane[16]; } vi;
typedef struct { float lane[16]; } vf;

#define FOR_LANES for (int i = 0; i < 16; i++)

INLINE vi vi_load(const void *p)
{
    vi r;
    memcpy(&r, p, sizeof r);
    return r;
}
INLINE vi vi_splat(int32_t x)
{
    vi r;
    FOR_LANES r.lane[i] = (uint32_t)x;
    return r;
}
INLINE vi vi_splat8(int x) { return vi_splat((int32_t)((uint32_t)(x & 255) * 0x01010101u)); }
INLINE vi vi_and(vi a, vi b)
{
    FOR_LANES a.lane[i] &= b.lane[i];
    return a;
}
INLINE vi vi_or(vi a, vi b)
{
    FOR_LANES a.lane[i] |= b.lane[i];
    return a;
}
INLINE vi vi_sub(vi a, vi b)
{
    FOR_LANES a.lane[i] -= b.lane[i];
    return a;
}
INLINE vi vi_add(vi a, vi b)
{
    FOR_LANES a.lane[i] += b.lane[i];
    return a;
}
INLINE vi vi_left(vi a, int n)
{
    FOR_LANES a.lane[i] <<= n;
    return a;
}
INLINE vi vi_right(vi a, int n)
{
    FOR_LANES a.lane[i] >>= n;
    return a;
}
INLINE vi vi_dot(vi a, vi weights, const int8_t *four)
{
    FOR_LANES for (int t = 0; t < 4; t++)
        a.lane[i] += (uint32_t)((int32_t)(int8_t)(weights.lane[i] >> (8 * t)) * four[t]);
    return a;
}
/* Integers of 16 bits: products of pairs, and the lower halves of sixteen lanes. */
#define HAS_WORDS
INLINE void vi_store(void *p, vi a) { memcpy(p, &a, sizeof a); }
INLINE vi vi_dot_words(vi a, vi weights, const int16_t *two)
{
    FOR_LANES for (int t = 0; t < 2; t++)
        a.lane[i] += (uint32_t)((int32_t)(int16_t)(weights.lane[i] >> (16 * t)) * two[t]);
    return a;
}
/* a * factor to the nearest integer, of 16 bits, in the lower half of each lane. */
INLINE vi vf_units(vf a, vf factor)
{
    vi r;
    FOR_LANES r.lane[i] = (uint32_t)(int32_t)nearbyintf(a.lane[i] * factor.lane[i]);
    return r;
}
/* The lower halves of two. */
INLINE vi vi_pair_words(vi one, vi other)
{
    FOR_LANES one.lane[i] = (one.lane[i] & 0xffff) | other.lane[i] << 16;
    return one;
}
INLINE void vi_store_words(int16_t *to, vi a) { FOR_LANES to[i] = (int16_t)a.lane[i]; }
/* How many lanes of a are larger than those of b, in magnitude. */
INLINE int vf_count_larger(vf a, vf b)
{
    int count = 0;
    FOR_LANES count += fabsf(a.lane[i]) > fabsf(b.lane[i]);
    return count;
}
INLINE vi vi_and_or(vi a, vi mask, vi other) { return vi_or(vi_and(a, mask), other); }

/* a * b + c, rounded once. */
INLINE vf vf_fused(vf a, vf b, vf c)
{
    FOR_LANES c.lane[i] = (float)((double)a.lane[i] * (double)b.lane[i] + (double)c.lane[i]);
    return c;
}

/* Brain floats: to nearest, to even. */
INLINE uint32_t brain_half(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (!(x == x))
        return bits >> 16 | 64; /* the bits that are kept may be none */
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
INLINE vi vi_brain_pairs(vf even, vf odd)
{
    vi r;
    FOR_LANES r.lane[i] = brain_half(even.lane[i]) | brain_half(odd.lane[i]) << 16;
    return r;
}
INLINE void vf_store_brain(uint8_t *to, vf first, vf second)
{
    uint16_t halves[32];
    FOR_LANES
    {
        halves[i] = (uint16_t)brain_half(first.lane[i]);
        halves[16 + i] = (uint16_t)brain_half(second.lane[i]);
    }
    memcpy(to, halves, sizeof halves);
}
INLINE vf vf_load_brain(const uint8_t *p)
{
    vf r;
    FOR_LANES
    {
        uint16_t half;
        memcpy(&half, p + 2 * i, 2);
        const uint32_t bits = (uint32_t)half << 16;
        memcpy(&r.lane[i], &bits, 4);
    }
    return r;
}
INLINE vi vi_signed_weights(vi weights) { return weights; }
INLINE vi vi_dot_signed(vi a, vi weights, const int8_t *four) { return vi_dot(a, weights, four); }

INLINE vi vi_table(const int8_t *sixteen)
{
    vi r;
    for (int i = 0; i < 4; i++)
        memcpy(&r.lane[4 * i], sixteen, 16);
    return r;
}
INLINE vi vi_lookup(vi table, vi nibbles)
{
    const uint8_t *values = (const uint8_t *)table.lane;
    vi r;
    FOR_LANES
    {
        uint32_t n = nibbles.lane[i];
        r.lane[i] = (uint32_t)values[n & 15] | (uint32_t)values[n >> 8 & 15] << 8
                    | (uint32_t)values[n >> 16 & 15] << 16 | (uint32_t)values[n >> 24 & 15] << 24;
    }
    return r;
}

INLINE vf vf_splat(float x)
{
    vf r;
    FOR_LANES r.lane[i] = x;
    return r;
}
INLINE vf vf_zero(void) { return vf_splat(0.0f); }
INLINE vf vf_load(const float *p)
{
    vf r;
    memcpy(&r, p, sizeof r);
    return r;
}
INLINE void vf_store(float *p, vf a) { memcpy(p, &a, sizeof a); }
INLINE void vf_stream(float *p, vf a) { vf_store(p, a); }
INLINE void vf_stream_end(void) {}
INLINE void vf_store_first(float *p, vf a, int n) { memcpy(p, &a, (size_t)n * sizeof *p); }
INLINE vf vf_add(vf a, vf b)
{
    FOR_LANES a.lane[i] += b.lane[i];
    return a;
}
INLINE vf vf_mul(vf a, vf b)
{
    FOR_LANES a.lane[i] *= b.lane[i];
    return a;
}
INLINE vf vf_fma(vf a, vf b, vf c)
{
    FOR_LANES c.lane[i] += a.lane[i] * b.lane[i];
    return c;
}
INLINE vf vf_from_int(vi a)
{
    vf r;
    FOR_LANES r.lane[i] = (float)(int32_t)a.lane[i];
    return r;
}
INLINE vf vf_as_float(vi a)
{
    vf r;
    memcpy(&r, &a, sizeof r);
    return r;
}
INLINE float half_to_float(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31, rest = half & 1023;
    uint32_t bits;
    float value;
    if (exponent == 0) { /* zero or subnormal: a whole number of 2^-24 */
        value = (float)rest * 0x1p-24f;
        return sign ? -value : value;
    }
    exponent = exponent == 31 ? 255 : exponent + 112;
    bits = sign | exponent << 23 | rest << 13;
    memcpy(&value, &bits, 4);
    return value;
}
INLINE vf vf_load_half(const uint8_t *p)
{
    vf r;
    FOR_LANES
    {
        uint16_t half;
        memcpy(&half, p + 2 * i, 2);
        r.lane[i] = half_to_float(half);
    }
    return r;
}
INLINE vi vi_load_u8(const uint8_t *p)
{
    vi r;
    FOR_LANES r.lane[i] = p[i];
    return r;
}
INLINE vi vi_load_i8(const uint8_t *p)
{
    vi r;
    FOR_LANES r.lane[i] = (uint32_t)(int32_t)(int8_t)p[i];
    return r;
}

/* The largest magnitude of 32 numbers; NaNs may be ignored. */
INLINE float vf_largest(vf a, vf b)
{
    float largest = 0.0f;
    FOR_LANES
    {
        largest = fabsf(a.lane[i]) > largest ? fabsf(a.lane[i]) : largest;
        largest = fabsf(b.lane[i]) > largest ? fabsf(b.lane[i]) : largest;
    }
    return largest;
}
INLINE float vf_total(vf a)
{
    float total = 0.0f;
    FOR_LANES total += a.lane[i];
    return total;
}

/* Store a * factor as bytes, rounded to nearest; return their sum. */
INLINE int32_t vf_store_rounded(int8_t *to, vf a, float factor)
{
    int32_t sum = 0;
    FOR_LANES
    {
        int32_t rounded = (int32_t)lrintf(a.lane[i] * factor);
        to[i] = (int8_t)rounded;
        sum += rounded;
    }
    return sum;
}

INLINE vf vf_sub(vf a, vf b)
{
    FOR_LANES a.lane[i] -= b.lane[i];
    return a;
}
INLINE vf vf_div(vf a, vf b)
{
    FOR_LANES a.lane[i] /= b.lane[i];
    return a;
}
INLINE vf vf_max(vf a, vf b) /* b, if one is not a number */
{
    FOR_LANES a.lane[i] = a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i];
    return a;
}
INLINE vf vf_min(vf a, vf b)
{
    FOR_LANES a.lane[i] = a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i];
    return a;
}
INLINE float vf_highest(vf a)
{
    float highest = a.lane[0];
    FOR_LANES highest = a.lane[i] > highest ? a.lane[i] : highest;
    return highest;
}
INLINE vi vf_to_int(vf a) /* to nearest; NaN becomes any number */
{
    vi r;
    FOR_LANES r.lane[i] = fabsf(a.lane[i]) < 1e9f ? (uint32_t)(int32_t)lrintf(a.lane[i]) : 0;
    return r;
}

/* Four rows of four floats into columns. */
INLINE void transpose_four(const float *from, size_t row, float *to, size_t column)
{
    for (size_t i = 0; i < 4; i++)
        for (size_t j = 0; j < 4; j++)
            to[i * column + j] = from[j * row + i];
}
INLINE float half_value(const uint8_t *p)
{
    uint16_t half;
    memcpy(&half, p, 2);
    return half_to_float(half);
}

/* The same value, of which the compiler no longer knows where it comes from. */
INLINE vi vi_opaque(vi a)
{
    __asm__ volatile("" : : "r"(&a) : "memory");
    return a;
}
INLINE vf vf_opaque(vf a)
{
    __asm__ volatile("" : : "r"(&a) : "memory");
    return a;
}
