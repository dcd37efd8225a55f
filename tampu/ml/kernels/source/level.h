/* All kernels for one level: included once by each level_*.c, which chooses the lanes. */
#include <math.h>
#include <string.h>

#include "kernels.h"
#include "packed.h"

#if !defined(INLINE) /* the sanitizers' build defines both: else it would take minutes */
#define INLINE static inline __attribute__((always_inline))
#endif

/* Loops over tokens: GCC leaves those of more than sixteen turns alone, with their sums in memory. */
#if defined(UNROLL)
#elif defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

#include LANES

#define FLOAT_COLUMNS (2 * COLUMNS)
#if !defined(MOST_COLUMNS)
#define MOST_COLUMNS COLUMNS
#endif

/* Inputs below this are zeros: their scale would have no inverse. */
#define SMALLEST 1e-30f

#include "quantized_gemm.h"
#if defined(HAS_WORDS)
#include "fixed.h"
#endif
#if defined(HAS_AMX)
#include TILES
#include "amx_gemm.h"
#endif
#include "quantize.h"
#include "attention.h"
#include "recurrence.h"
#include "scan.h"
#include "peaks.h"

/* `prepared` is the strip `w` once more, or NULL; only some layouts are prepared. */
typedef void tile(const uint8_t *w, const uint8_t *prepared, const uint8_t *panel, int64_t inputs,
                  float *out, int64_t stride, int rows, struct fetch fetch);

/* One strip is a case of its own: as the compiler knows that there is one, its sums stay in registers. */
#define TILE(kind, name, type, n)                                                                    \
    static void name##_##n(const uint8_t *w, const uint8_t *prepared, const uint8_t *panel,          \
                           int64_t inputs, float *out, int64_t stride, int rows, struct fetch fetch) \
    {                                                                                                \
        if (streams_of(n, rows) == 1)                                                                \
            kind(type, n, 1, w, prepared, panel, inputs, out, stride, rows, fetch);                  \
        else                                                                                         \
            kind(type, n, streams_of(n, rows), w, prepared, panel, inputs, out, stride, rows, fetch); \
    }

#if COLUMNS == 12
#define FOR_COLUMNS(M, ...)                                                                          \
    M(__VA_ARGS__, 1) M(__VA_ARGS__, 2) M(__VA_ARGS__, 3) M(__VA_ARGS__, 4) M(__VA_ARGS__, 5)        \
    M(__VA_ARGS__, 6) M(__VA_ARGS__, 7) M(__VA_ARGS__, 8) M(__VA_ARGS__, 9) M(__VA_ARGS__, 10)       \
    M(__VA_ARGS__, 11) M(__VA_ARGS__, 12)
#define FOR_FLOAT_COLUMNS(M, ...)                                                                    \
    FOR_COLUMNS(M, __VA_ARGS__)                                                                      \
    M(__VA_ARGS__, 13) M(__VA_ARGS__, 14) M(__VA_ARGS__, 15) M(__VA_ARGS__, 16) M(__VA_ARGS__, 17)   \
    M(__VA_ARGS__, 18) M(__VA_ARGS__, 19) M(__VA_ARGS__, 20) M(__VA_ARGS__, 21) M(__VA_ARGS__, 22)   \
    M(__VA_ARGS__, 23) M(__VA_ARGS__, 24)
#else
#define FOR_COLUMNS(M, ...) M(__VA_ARGS__, 1) M(__VA_ARGS__, 2) M(__VA_ARGS__, 3) M(__VA_ARGS__, 4)
#define FOR_FLOAT_COLUMNS(M, ...)                                                                    \
    FOR_COLUMNS(M, __VA_ARGS__)                                                                      \
    M(__VA_ARGS__, 5) M(__VA_ARGS__, 6) M(__VA_ARGS__, 7) M(__VA_ARGS__, 8)
#endif

#if MOST_COLUMNS > COLUMNS
#define FOR_QUANTIZED_COLUMNS(M, ...)                                                                \
    FOR_COLUMNS(M, __VA_ARGS__)                                                                      \
    M(__VA_ARGS__, 13) M(__VA_ARGS__, 14) M(__VA_ARGS__, 15) M(__VA_ARGS__, 16)                      \
    M(__VA_ARGS__, 17) M(__VA_ARGS__, 18) M(__VA_ARGS__, 19) M(__VA_ARGS__, 20)
#else
#define FOR_QUANTIZED_COLUMNS FOR_COLUMNS
#endif

#define NAME_OF(kind, name, type, n) name##_##n,

#define QUANTIZED(name, type)                                                                        \
    FOR_QUANTIZED_COLUMNS(TILE, quantized_strips, name, type)                                        \
    static tile *const name[] = {FOR_QUANTIZED_COLUMNS(NAME_OF, quantized_strips, name, type)};

#define FLOATING(name, type)                                                                         \
    FOR_FLOAT_COLUMNS(TILE, float_strips, name, type)                                                \
    static tile *const name[] = {FOR_FLOAT_COLUMNS(NAME_OF, float_strips, name, type)};

QUANTIZED(q4_0, TYPE_Q4_0)
QUANTIZED(q4_1, TYPE_Q4_1)
QUANTIZED(q5_0, TYPE_Q5_0)
QUANTIZED(q8_0, TYPE_Q8_0)
QUANTIZED(q4_k, TYPE_Q4_K)
QUANTIZED(q5_k, TYPE_Q5_K)
QUANTIZED(q6_k, TYPE_Q6_K)
QUANTIZED(iq4_nl, TYPE_IQ4_NL)
QUANTIZED(mxfp4, TYPE_MXFP4)
FLOATING(f16, TYPE_F16)
FLOATING(bf16, TYPE_BF16)
#if defined(HAS_WORDS)
FOR_COLUMNS(TILE, fixed_strips, f16_fixed, TYPE_F16_FIXED)
static tile *const f16_fixed[] = {FOR_COLUMNS(NAME_OF, fixed_strips, f16_fixed, TYPE_F16_FIXED)};
#endif

static tile *const *tiles_of(int type)
{
    switch (type) {
    case TYPE_F16: return f16;
#if defined(HAS_WORDS)
    case TYPE_F16_FIXED: return f16_fixed;
#endif
    case TYPE_Q4_0: return q4_0;
    case TYPE_Q4_1: return q4_1;
    case TYPE_Q5_0: return q5_0;
    case TYPE_Q8_0: return q8_0;
    case TYPE_Q4_K: return q4_k;
    case TYPE_Q5_K: return q5_k;
    case TYPE_Q6_K: return q6_k;
    case TYPE_IQ4_NL: return iq4_nl;
    case TYPE_MXFP4: return mxfp4;
    default: return bf16;
    }
}

#if !defined(HAS_AMX)
#define activation_bytes NULL
#endif

#include "schedule.h"
#include "experts.h"

#if !defined(HAS_WORDS)
#define pack_fixed NULL
#endif

const struct level LEVEL = {LEVEL_NAME,    quantize,     interleave,   product,    group,
                            product_each,  attention,    integer_peak, word_peak,  float_peak,
                            brain_peak,    read_all,     pack_fixed, activation_bytes,
                            tile_peak,     delta_rule,   convolution,  weighted_total,
                            selective_scan};
