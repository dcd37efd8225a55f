/* Sixteen lanes in four NEON registers of a 64-bit ARM processor with products of four bytes. */
#include <arm_neon.h>

#define COLUMNS 4
#define SCORE_ROWS 1
#define SIGNED_BIAS 0

typedef struct { uint32x4_t part[4]; } vi;
typedef struct { float32x4_t part[4]; } vf;

#define FOR_PARTS UNROLL for (int i = 0; i < 4; i++)

INLINE vi vi_load(const void *p)
{
    vi r;
    FOR_PARTS r.part[i] = vreinterpretq_u32_u8(vld1q_u8((const uint8_t *)p + 16 * i));
    return r;
}
INLINE vi vi_splat(int32_t x)
{
    vi r;
    FOR_PARTS r.part[i] = vdupq_n_u32((uint32_t)x);
    return r;
}
INLINE vi vi_splat8(int x) { return vi_splat((int32_t)((uint32_t)(x & 255) * 0x01010101u)); }
INLINE vi vi_and(vi a, vi b)
{
    FOR_PARTS a.part[i] = vandq_u32(a.part[i], b.part[i]);
    return a;
}
INLINE vi vi_or(vi a, vi b)
{
    FOR_PARTS a.part[i] = vorrq_u32(a.part[i], b.part[i]);
    return a;
}
INLINE vi vi_add(vi a, vi b)
{
    FOR_PARTS a.part[i] = vaddq_u32(a.part[i], b.part[i]);
    return a;
}
INLINE vi vi_left(vi a, int n)
{
    FOR_PARTS a.part[i] = vshlq_u32(a.part[i], vdupq_n_s32(n));
    return a;
}
INLINE vi vi_right(vi a, int n)
{
    FOR_PARTS a.part[i] = vshlq_u32(a.part[i], vdupq_n_s32(-n));
    return a;
}
INLINE vi vi_dot(vi a, vi weights, const int8_t *four)
{
    uint32_t word;
    memcpy(&word, four, 4);
    int8x16_t x = vreinterpretq_s8_u32(vdupq_n_u32(word));
    FOR_PARTS a.part[i] = vreinterpretq_u32_s32(
        vdotq_s32(vreinterpretq_s32_u32(a.part[i]), vreinterpretq_s8_u32(weights.part[i]), x));
    return a;
}
INLINE vi vi_signed_weights(vi weights) { return weights; }
INLINE vi vi_dot_signed(vi a, vi weights, const int8_t *four) { return vi_dot(a, weights, four); }

INLINE vi vi_table(const int8_t *sixteen)
{
    vi r;
    FOR_PARTS r.part[i] = vreinterpretq_u32_s8(vld1q_s8(sixteen));
    return r;
}
INLINE vi vi_lookup(vi table, vi nibbles)
{
    FOR_PARTS nibbles.part[i] = vreinterpretq_u32_u8(
        vqtbl1q_u8(vreinterpretq_u8_u32(table.part[i]), vreinterpretq_u8_u32(nibbles.part[i])));
    return nibbles;
}

INLINE vf vf_splat(float x)
{
    vf r;
    FOR_PARTS r.part[i] = vdupq_n_f32(x);
    return r;
}
INLINE vf vf_zero(void) { return vf_splat(0.0f); }
INLINE vf vf_load(const float *p)
{
    vf r;
    FOR_PARTS r.part[i] = vld1q_f32(p + 4 * i);
    return r;
}
INLINE void vf_store(float *p, vf a)
{
    FOR_PARTS vst1q_f32(p + 4 * i, a.part[i]);
}
INLINE void vf_stream(float *p, vf a) { vf_store(p, a); }
INLINE void vf_stream_end(void) {}
INLINE void vf_store_first(float *p, vf a, int n)
{
    float all[16];
    vf_store(all, a);
    memcpy(p, all, (size_t)n * sizeof *p);
}

#define OF_TWO(name, operation)                                                                      \
    INLINE vf name(vf a, vf b)                                                                       \
    {                                                                                                \
        FOR_PARTS a.part[i] = operation(a.part[i], b.part[i]);                                       \
        return a;                                                                                    \
    }
OF_TWO(vf_add, vaddq_f32)
OF_TWO(vf_sub, vsubq_f32)
OF_TWO(vf_mul, vmulq_f32)
OF_TWO(vf_div, vdivq_f32)

INLINE vf vf_fma(vf a, vf b, vf c)
{
    FOR_PARTS c.part[i] = vfmaq_f32(c.part[i], a.part[i], b.part[i]);
    return c;
}
INLINE vf vf_max(vf a, vf b) /* b, if one is not a number */
{
    FOR_PARTS a.part[i] = vbslq_f32(vcgtq_f32(a.part[i], b.part[i]), a.part[i], b.part[i]);
    return a;
}
INLINE vf vf_min(vf a, vf b)
{
    FOR_PARTS a.part[i] = vbslq_f32(vcltq_f32(a.part[i], b.part[i]), a.part[i], b.part[i]);
    return a;
}
INLINE vf vf_from_int(vi a)
{
    vf r;
    FOR_PARTS r.part[i] = vcvtq_f32_s32(vreinterpretq_s32_u32(a.part[i]));
    return r;
}
INLINE vi vf_to_int(vf a) /* to nearest */
{
    vi r;
    FOR_PARTS r.part[i] = vreinterpretq_u32_s32(vcvtnq_s32_f32(a.part[i]));
    return r;
}
INLINE vf vf_as_float(vi a)
{
    vf r;
    FOR_PARTS r.part[i] = vreinterpretq_f32_u32(a.part[i]);
    return r;
}
INLINE vf vf_load_half(const uint8_t *p)
{
    vf r;
    FOR_PARTS r.part[i] = vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p + 8 * i)));
    return r;
}
INLINE vi vi_load_u8(const uint8_t *p)
{
    uint8x16_t bytes = vld1q_u8(p);
    uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_u8(vget_high_u8(bytes));
    return (vi){{vmovl_u16(vget_low_u16(low)), vmovl_u16(vget_high_u16(low)),
                 vmovl_u16(vget_low_u16(high)), vmovl_u16(vget_high_u16(high))}};
}
INLINE vi vi_load_i8(const uint8_t *p)
{
    vi r = vi_load_u8(p);
    FOR_PARTS r.part[i] = vreinterpretq_u32_s32(
        vshrq_n_s32(vreinterpretq_s32_u32(vshlq_n_u32(r.part[i], 24)), 24));
    return r;
}

/* The largest magnitude of 32 numbers; NaNs may be ignored. */
INLINE float vf_largest(vf a, vf b)
{
    float32x4_t largest = vdupq_n_f32(0.0f);
    FOR_PARTS largest = vmaxnmq_f32(largest, vabsq_f32(a.part[i]));
    FOR_PARTS largest = vmaxnmq_f32(largest, vabsq_f32(b.part[i]));
    return vmaxnmvq_f32(largest);
}
INLINE float vf_total(vf a)
{
    return vaddvq_f32(vaddq_f32(vaddq_f32(a.part[0], a.part[1]), vaddq_f32(a.part[2], a.part[3])));
}
INLINE float vf_highest(vf a)
{
    return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a.part[0], a.part[1]), vmaxq_f32(a.part[2], a.part[3])));
}

/* Store a * factor as bytes, rounded to nearest; return their sum. */
INLINE int32_t vf_store_rounded(int8_t *to, vf a, float factor)
{
    int32x4_t r[4], sum = vdupq_n_s32(0);
    FOR_PARTS r[i] = vcvtnq_s32_f32(vmulq_n_f32(a.part[i], factor));
    FOR_PARTS sum = vaddq_s32(sum, r[i]);
    int16x8_t low = vcombine_s16(vmovn_s32(r[0]), vmovn_s32(r[1]));
    int16x8_t high = vcombine_s16(vmovn_s32(r[2]), vmovn_s32(r[3]));
    vst1q_s8(to, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
    return vaddvq_s32(sum);
}

/* Four rows of four floats into columns. */
INLINE void transpose_four(const float *from, size_t row, float *to, size_t column)
{
    float32x4x4_t rows;
    float all[16];
    FOR_PARTS rows.val[i] = vld1q_f32(from + i * row);
    vst4q_f32(all, rows);
    FOR_PARTS vst1q_f32(to + i * column, vld1q_f32(all + 4 * i));
}
INLINE float half_value(const uint8_t *p)
{
    float16_t half;
    memcpy(&half, p, 2);
    return (float)half;
}

/* The same value, of which the compiler no longer knows where it comes from. */
INLINE vi vi_opaque(vi a)
{
    FOR_PARTS __asm__ volatile("" : "+w"(a.part[i]));
    return a;
}
INLINE vf vf_opaque(vf a)
{
    FOR_PARTS __asm__ volatile("" : "+w"(a.part[i]));
    return a;
}
