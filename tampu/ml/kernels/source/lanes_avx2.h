/* Sixteen lanes in two AVX2 registers. */
#include "lanes_x86.h"

#define COLUMNS 4
#define SCORE_ROWS 1

typedef struct { __m256i a, b; } vi;
typedef struct { __m256 a, b; } vf;

#define EACH(type, expression_a, expression_b) ((type){(expression_a), (expression_b)})

INLINE vi vi_load(const void *p)
{
    const __m256i *q = (const __m256i *)p;
    return EACH(vi, _mm256_loadu_si256(q), _mm256_loadu_si256(q + 1));
}
INLINE vi vi_splat(int32_t x) { return EACH(vi, _mm256_set1_epi32(x), _mm256_set1_epi32(x)); }
INLINE vi vi_splat8(int x)
{
    return EACH(vi, _mm256_set1_epi8((char)x), _mm256_set1_epi8((char)x));
}
INLINE vi vi_and(vi x, vi y) { return EACH(vi, _mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)); }
INLINE vi vi_or(vi x, vi y) { return EACH(vi, _mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)); }
INLINE vi vi_add(vi x, vi y) { return EACH(vi, _mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)); }
INLINE vi vi_left(vi x, int n) { return EACH(vi, _mm256_slli_epi32(x.a, n), _mm256_slli_epi32(x.b, n)); }
INLINE vi vi_right(vi x, int n) { return EACH(vi, _mm256_srli_epi32(x.a, n), _mm256_srli_epi32(x.b, n)); }

#if !defined(OWN_DOT)
#define SIGNED_BIAS 0

/* Pairs of products fit 16 bits: weights are below 128, activations at most 127. */
INLINE __m256i dot_half(__m256i sum, __m256i unsigned_, __m256i signed_)
{
    __m256i pairs = _mm256_maddubs_epi16(unsigned_, signed_);
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
INLINE vi vi_dot(vi sum, vi weights, const int8_t *four)
{
    int32_t word;
    memcpy(&word, four, 4);
    __m256i x = _mm256_set1_epi32(word);
    return EACH(vi, dot_half(sum.a, weights.a, x), dot_half(sum.b, weights.b, x));
}
INLINE vi vi_signed_weights(vi weights) { return weights; }
INLINE vi vi_dot_signed(vi sum, vi weights, const int8_t *four)
{
    int32_t word;
    memcpy(&word, four, 4);
    __m256i x = _mm256_set1_epi32(word);
    return EACH(vi, dot_half(sum.a, _mm256_abs_epi8(weights.a), _mm256_sign_epi8(x, weights.a)),
                dot_half(sum.b, _mm256_abs_epi8(weights.b), _mm256_sign_epi8(x, weights.b)));
}
#endif

INLINE vi vi_table(const int8_t *sixteen)
{
    __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)sixteen));
    return EACH(vi, table, table);
}
INLINE vi vi_lookup(vi table, vi nibbles)
{
    return EACH(vi, _mm256_shuffle_epi8(table.a, nibbles.a), _mm256_shuffle_epi8(table.b, nibbles.b));
}

INLINE vf vf_zero(void) { return EACH(vf, _mm256_setzero_ps(), _mm256_setzero_ps()); }
INLINE vf vf_splat(float x) { return EACH(vf, _mm256_set1_ps(x), _mm256_set1_ps(x)); }
INLINE vf vf_load(const float *p) { return EACH(vf, _mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)); }
INLINE void vf_store(float *p, vf x)
{
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
/* Past the caches, to a multiple of 64: of memory that is written whole nothing is read before. */
INLINE void vf_stream(float *p, vf x)
{
    _mm256_stream_ps(p, x.a);
    _mm256_stream_ps(p + 8, x.b);
}
INLINE void vf_stream_end(void) { _mm_sfence(); }
INLINE void vf_store_first(float *p, vf x, int n)
{
    float all[16];
    vf_store(all, x);
    memcpy(p, all, (size_t)n * sizeof *p);
}
INLINE vf vf_add(vf x, vf y) { return EACH(vf, _mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)); }
INLINE vf vf_mul(vf x, vf y) { return EACH(vf, _mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)); }
INLINE vf vf_fma(vf x, vf y, vf z)
{
    return EACH(vf, _mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b));
}
INLINE vf vf_from_int(vi x) { return EACH(vf, _mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)); }
INLINE vf vf_as_float(vi x) { return EACH(vf, _mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)); }
INLINE vf vf_load_half(const uint8_t *p)
{
    const __m128i *q = (const __m128i *)p;
    return EACH(vf, _mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1)));
}
INLINE vi vi_load_u8(const uint8_t *p)
{
    return EACH(vi, _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)),
                _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8))));
}
INLINE vi vi_load_i8(const uint8_t *p)
{
    return EACH(vi, _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)),
                _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8))));
}

/* The largest magnitude of 32 numbers; NaNs may be ignored. */
INLINE float vf_largest(vf x, vf y)
{
    __m256 sign = _mm256_set1_ps(-0.0f);
    __m256 one = _mm256_max_ps(_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b));
    __m256 other = _mm256_max_ps(_mm256_andnot_ps(sign, y.a), _mm256_andnot_ps(sign, y.b));
    one = _mm256_max_ps(one, other);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(one), _mm256_extractf128_ps(one, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}
INLINE float vf_total(vf x)
{
    __m256 one = _mm256_add_ps(x.a, x.b);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(one), _mm256_extractf128_ps(one, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

/* Store x * factor as bytes, rounded to nearest; return their sum. */
INLINE int32_t vf_store_rounded(int8_t *to, vf x, float factor)
{
    __m256 by = _mm256_set1_ps(factor);
    __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(x.a, by));
    __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(x.b, by));
    __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
    __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128((__m128i *)to, bytes);
    __m256i sum = _mm256_add_epi32(a, b);
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}

INLINE vf vf_sub(vf x, vf y) { return EACH(vf, _mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)); }
INLINE vf vf_div(vf x, vf y) { return EACH(vf, _mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)); }
INLINE vf vf_max(vf x, vf y) { return EACH(vf, _mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)); }
INLINE vf vf_min(vf x, vf y) { return EACH(vf, _mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)); }
INLINE float vf_highest(vf x)
{
    __m256 one = _mm256_max_ps(x.a, x.b);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(one), _mm256_extractf128_ps(one, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}
INLINE vi vf_to_int(vf x) { return EACH(vi, _mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)); }

/* The same value, of which the compiler no longer knows where it comes from. */
INLINE vi vi_opaque(vi x)
{
    __asm__ volatile("" : "+x"(x.a), "+x"(x.b));
    return x;
}
INLINE vf vf_opaque(vf x)
{
    __asm__ volatile("" : "+x"(x.a), "+x"(x.b));
    return x;
}
