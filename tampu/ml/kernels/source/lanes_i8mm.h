/* Sixteen lanes in four NEON registers, with products of two rows of eight bytes by two (FEAT_I8MM). */
#include "lanes_neon.h"

#define PAIR_PRODUCTS

/* Sixteen rows by two things: eight inputs of weights, or the sums of two tokens. Register i has rows
 * 2 i and 2 i + 1, each with its two numbers (of 32 bits). */
typedef struct { uint32x4_t part[8]; } vp;

#define FOR_PAIRS UNROLL for (int i = 0; i < 8; i++)

INLINE vp vp_zero(void)
{
    vp r;
    FOR_PAIRS r.part[i] = vdupq_n_u32(0);
    return r;
}

/* Eight inputs of each row, from the vectors of the first and of the last four. */
INLINE vp vp_weights(vi first, vi last)
{
    vp r;
    FOR_PARTS
    {
        r.part[2 * i] = vzip1q_u32(first.part[i], last.part[i]);
        r.part[2 * i + 1] = vzip2q_u32(first.part[i], last.part[i]);
    }
    return r;
}

/* sum + eight products for each row and token. */
INLINE vp vp_dot(vp sum, vp weights, const int8_t *token, const int8_t *other)
{
    const int8x16_t x = vcombine_s8(vld1_s8(token), vld1_s8(other));
    FOR_PAIRS sum.part[i] = vreinterpretq_u32_s32(vmmlaq_s32(
        vreinterpretq_s32_u32(sum.part[i]), vreinterpretq_s8_u32(weights.part[i]), x));
    return sum;
}

/* Add what belongs to the first token to `first`, what belongs to the second to `second`. */
INLINE void vp_part(vp sum, vi *first, vi *second)
{
    FOR_PARTS
    {
        const uint32x4_t low = sum.part[2 * i], high = sum.part[2 * i + 1];
        first->part[i] = vaddq_u32(first->part[i], vuzp1q_u32(low, high));
        second->part[i] = vaddq_u32(second->part[i], vuzp2q_u32(low, high));
    }
}
