/* Sixteen lanes in one AVX-512 register, with products of pairs of brain floats. */
#include "lanes_avx512.h"

#define BRAIN_PRODUCTS

/* a + two products for each lane; `pair` holds two brain floats, the first one below. */
INLINE vf vf_dot_pair(vf a, vi weights, uint32_t pair)
{
    return _mm512_dpbf16_ps(a, (__m512bh)weights, (__m512bh)_mm512_set1_epi32((int32_t)pair));
}

INLINE vf vf_fused(vf a, vf b, vf c) { return vf_fma(a, b, c); }
INLINE vi vi_and_or(vi a, vi mask, vi other) { return _mm512_ternarylogic_epi32(a, mask, other, 0xea); }

/* Two numbers of each lane as brain floats, `even` in the lower half. */
INLINE vi vi_brain_pairs(vf even, vf odd)
{
    const __m512i order = _mm512_set_epi32(0x1f000f, 0x1e000e, 0x1d000d, 0x1c000c, 0x1b000b, 0x1a000a,
                                           0x190009, 0x180008, 0x170007, 0x160006, 0x150005, 0x140004,
                                           0x130003, 0x120002, 0x110001, 0x100000);
    return _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(odd, even));
}
/* 32 numbers as brain floats, in order. */
INLINE void vf_store_brain(uint8_t *to, vf first, vf second)
{
    _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(second, first));
}
INLINE vf vf_load_brain(const uint8_t *p)
{
    return vf_as_float(vi_left(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
