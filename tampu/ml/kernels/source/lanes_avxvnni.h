/* Sixteen lanes in two AVX2 registers, with the products of four bytes that AVX-VNNI has. */
#define OWN_DOT
#include "lanes_avx2.h"

#if defined(__AVXVNNI__)
#define DOT_HALF _mm256_dpbusd_avx_epi32
#else /* AVX-512 has the same instruction under another code */
#define DOT_HALF _mm256_dpbusd_epi32
#endif

INLINE vi vi_dot(vi sum, vi weights, const int8_t *four)
{
    int32_t word;
    memcpy(&word, four, 4);
    __m256i x = _mm256_set1_epi32(word);
    return EACH(vi, DOT_HALF(sum.a, weights.a, x), DOT_HALF(sum.b, weights.b, x));
}

#define SIGNED_BIAS 128 /* unsigned weights are wanted: the bias is taken off again by the sums */
INLINE vi vi_signed_weights(vi weights)
{
    __m256i top = _mm256_set1_epi8(-128);
    return EACH(vi, _mm256_xor_si256(weights.a, top), _mm256_xor_si256(weights.b, top));
}
INLINE vi vi_dot_signed(vi sum, vi weights, const int8_t *four) { return vi_dot(sum, weights, four); }
