/* Sixteen lanes in one AVX-512 register. */
#include "lanes_x86.h"

#define COLUMNS 12
#define MOST_COLUMNS 20 /* of quantized weights: then some sums are in memory */
#define SCORE_ROWS 6 /* query rows whose scores or results are in registers together */
#define SIGNED_BIAS 128 /* vpdpbusd wants unsigned weights: the bias is taken off again by the sums */

typedef __m512i vi;
typedef __m512 vf;

INLINE vi vi_load(const void *p) { return _mm512_loadu_si512(p); }
INLINE vi vi_splat(int32_t x) { return _mm512_set1_epi32(x); }
INLINE vi vi_splat8(int x) { return _mm512_set1_epi8((char)x); }
INLINE vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
INLINE vi vi_or(vi a, vi b) { return _mm512_or_si512(a, b); }
INLINE vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
INLINE vi vi_sub(vi a, vi b) { return _mm512_sub_epi32(a, b); }
INLINE vi vi_left(vi a, int n) { return _mm512_slli_epi32(a, (unsigned)n); }
INLINE vi vi_right(vi a, int n) { return _mm512_srli_epi32(a, (unsigned)n); }

/* a + four products for each lane; weights below 128. */
INLINE vi vi_dot(vi a, vi weights, const int8_t *four)
{
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(a) : "v"(weights), "m"(*(const int32_t(*)[1])four));
    return a;
}

/* The same for signed weights: the result is too large by SIGNED_BIAS times the sum of `four`. */
INLINE vi vi_signed_weights(vi weights) { return _mm512_xor_si512(weights, vi_splat8(-128)); }
INLINE vi vi_dot_signed(vi a, vi weights, const int8_t *four) { return vi_dot(a, weights, four); }

INLINE vi vi_table(const int8_t *sixteen)
{
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)sixteen));
}
INLINE vi vi_lookup(vi table, vi nibbles) { return _mm512_shuffle_epi8(table, nibbles); }

INLINE vf vf_zero(void) { return _mm512_setzero_ps(); }
INLINE vf vf_splat(float x) { return _mm512_set1_ps(x); }
INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void vf_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
/* Past the caches, to a multiple of 64: of memory that is written whole nothing is read before. */
INLINE void vf_stream(float *p, vf a) { _mm512_stream_ps(p, a); }
INLINE void vf_stream_end(void) { _mm_sfence(); }
INLINE void vf_store_first(float *p, vf a, int n)
{
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), a);
}
INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
INLINE vf vf_from_int(vi a) { return _mm512_cvtepi32_ps(a); }
INLINE vf vf_as_float(vi a) { return _mm512_castsi512_ps(a); }
INLINE vf vf_load_half(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
INLINE vi vi_load_u8(const uint8_t *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
}
INLINE vi vi_load_i8(const uint8_t *p)
{
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p));
}

/* The largest magnitude of 32 numbers; NaNs may be ignored. */
INLINE float vf_largest(vf a, vf b)
{
    return _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b)));
}
INLINE float vf_total(vf a) { return _mm512_reduce_add_ps(a); }

/* Store a * factor as bytes, rounded to nearest; return their sum. */
INLINE int32_t vf_store_rounded(int8_t *to, vf a, float factor)
{
    vi rounded = _mm512_cvtps_epi32(_mm512_mul_ps(a, _mm512_set1_ps(factor)));
    _mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8(rounded));
    return _mm512_reduce_add_epi32(rounded);
}

/* Integers of 16 bits: products of pairs, and the lower halves of sixteen lanes. */
#define HAS_WORDS
INLINE void vi_store(void *p, vi a) { _mm512_storeu_si512(p, a); }
INLINE vi vi_dot_words(vi a, vi weights, const int16_t *two)
{
    __asm__("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(a) : "v"(weights), "m"(*(const int32_t(*)[1])two));
    return a;
}
/* a * factor, an integer of 16 bits when rounded to nearest, in the lower half of each lane: 1.5 * 2^23 has
 * its last digit where that of integers is. */
INLINE vi vf_units(vf a, vf factor)
{
    return _mm512_castps_si512(_mm512_fmadd_ps(a, factor, _mm512_set1_ps(0x1.8p23f)));
}
/* The lower halves of two. */
INLINE vi vi_pair_words(vi one, vi other)
{
    return _mm512_mask_blend_epi16(0xaaaaaaaa, one, _mm512_slli_epi32(other, 16));
}
INLINE void vi_store_words(int16_t *to, vi a)
{
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtepi32_epi16(a));
}
/* How many lanes of a are larger than those of b, in magnitude. */
INLINE int vf_count_larger(vf a, vf b)
{
    return __builtin_popcount(_mm512_cmp_ps_mask(_mm512_abs_ps(a), _mm512_abs_ps(b), _CMP_GT_OQ));
}

INLINE vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
INLINE vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
INLINE vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); } /* b, if one is not a number */
INLINE vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
INLINE float vf_highest(vf a) { return _mm512_reduce_max_ps(a); }
INLINE vi vf_to_int(vf a) { return _mm512_cvtps_epi32(a); } /* to nearest */

/* Sixteen rows become sixteen columns: in pairs, fours, eights, and then the halves. */
#define HAS_TURN
INLINE void vf_turn(vf a[16])
{
    vf b[16];
    UNROLL for (int i = 0; i < 16; i += 2)
    {
        b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
    UNROLL for (int i = 0; i < 16; i += 4)
    {
        __m512d low = _mm512_castps_pd(b[i]), low2 = _mm512_castps_pd(b[i + 2]);
        __m512d high = _mm512_castps_pd(b[i + 1]), high2 = _mm512_castps_pd(b[i + 3]);
        a[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, low2));
        a[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, low2));
        a[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(high, high2));
        a[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(high, high2));
    }
    UNROLL for (int i = 0; i < 4; i++)
    {
        b[i] = _mm512_shuffle_f32x4(a[i], a[i + 4], 0x88);
        b[i + 4] = _mm512_shuffle_f32x4(a[i], a[i + 4], 0xdd);
        b[i + 8] = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0x88);
        b[i + 12] = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0xdd);
    }
    UNROLL for (int i = 0; i < 4; i++)
    {
        a[i] = _mm512_shuffle_f32x4(b[i], b[i + 8], 0x88);
        a[i + 8] = _mm512_shuffle_f32x4(b[i], b[i + 8], 0xdd);
        a[i + 4] = _mm512_shuffle_f32x4(b[i + 4], b[i + 12], 0x88);
        a[i + 12] = _mm512_shuffle_f32x4(b[i + 4], b[i + 12], 0xdd);
    }
}

/* The same value, of which the compiler no longer knows where it comes from. */
INLINE vi vi_opaque(vi a)
{
    __asm__ volatile("" : "+v"(a));
    return a;
}
INLINE vf vf_opaque(vf a)
{
    __asm__ volatile("" : "+v"(a));
    return a;
}
