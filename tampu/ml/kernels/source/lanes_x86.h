/* What the lanes of AVX2 and of AVX-512 have in common. */
#include <immintrin.h>

/* Four rows of four floats into columns. */
INLINE void transpose_four(const float *from, size_t row, float *to, size_t column)
{
    __m128 a = _mm_loadu_ps(from), b = _mm_loadu_ps(from + row);
    __m128 c = _mm_loadu_ps(from + 2 * row), d = _mm_loadu_ps(from + 3 * row);
    _MM_TRANSPOSE4_PS(a, b, c, d);
    _mm_storeu_ps(to, a);
    _mm_storeu_ps(to + column, b);
    _mm_storeu_ps(to + 2 * column, c);
    _mm_storeu_ps(to + 3 * column, d);
}
INLINE float half_value(const uint8_t *p)
{
    uint16_t half;
    memcpy(&half, p, 2);
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half)));
}
