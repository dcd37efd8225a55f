/* Sixteen lanes in one AVX-512 register, with products of pairs of brain floats. */
#include "lanes_avx512.h"

#define BRAIN_PRODUCTS

/* a + two products for each lane; `pair` holds two brain floats, the first one below. */
INLINE vf vf_dot_pair(vf a, vi weights, uint32_t pair)
{
    return _mm512_dpbf16_ps(a, (__m512bh)weights, (__m512bh)_mm512_set1_epi32((int32_t)pair));
}
