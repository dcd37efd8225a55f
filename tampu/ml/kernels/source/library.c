/* What the loader calls: which levels this processor has, their operations, sizes. */
#include "kernels.h"

#include <string.h>

#include "packed.h"

#if defined(TAMPU_NEON) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(TAMPU_NEON) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

const char *const tampu_sources = TAMPU_SOURCES;

static const struct level *const LEVELS[] = {
#if defined(TAMPU_I8MM)
    &LEVEL_I8MM,
#endif
#if defined(TAMPU_NEON)
    &LEVEL_NEON,
#endif
#if defined(TAMPU_AMX)
    &LEVEL_AMX,
#endif
#if defined(TAMPU_AVX512BF16)
    &LEVEL_AVX512BF16,
#endif
#if defined(TAMPU_AVX512)
    &LEVEL_AVX512,
#endif
#if defined(TAMPU_AVXVNNI)
    &LEVEL_AVXVNNI,
#endif
#if defined(TAMPU_AVX2)
    &LEVEL_AVX2,
#endif
    &LEVEL_AMX_EMULATED,
    &LEVEL_PORTABLE,
};

enum { LEVEL_TOTAL = sizeof LEVELS / sizeof *LEVELS };

#if defined(TAMPU_AVX2)
static int has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")
           && __builtin_cpu_supports("f16c");
}
#endif

#if defined(TAMPU_AVX512)
static int has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
           && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
           && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("f16c");
}
#endif

#if defined(TAMPU_AVX512BF16)
static int has_avx512bf16(void)
{
    return has_avx512() && __builtin_cpu_supports("avx512bf16");
}
#endif

#if defined(TAMPU_AVXVNNI)
static int has_avxvnni(void)
{
#if defined(VNNI_OF_AVX512) /* the tests': the same instruction under AVX-512's code */
    return has_avx512();
#else
    return has_avx2() && __builtin_cpu_supports("avxvnni");
#endif
}
#endif

#if defined(TAMPU_NEON)
static int has_byte_products(void)
{
#if defined(__linux__)
    return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
    return 1; /* Apple's processors of 64 bits: all since the M1 have them */
#endif
}
#endif

#if defined(TAMPU_I8MM)
static int has_byte_matrices(void)
{
#if defined(__linux__)
    return has_byte_products() && (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
#elif defined(__APPLE__)
    int has = 0;
    size_t size = sizeof has;
    return sysctlbyname("hw.optional.arm.FEAT_I8MM", &has, &size, NULL, 0) == 0 && has;
#else
    return 0;
#endif
}
#endif

static int is_usable(const struct level *level)
{
#if defined(TAMPU_I8MM)
    if (level == &LEVEL_I8MM)
        return has_byte_matrices();
#endif
#if defined(TAMPU_NEON)
    if (level == &LEVEL_NEON)
        return has_byte_products();
#endif
#if defined(TAMPU_AMX)
    if (level == &LEVEL_AMX)
        return has_avx512bf16() && tampu_amx_problem() == NULL;
#endif
#if defined(TAMPU_AVX512BF16)
    if (level == &LEVEL_AVX512BF16)
        return has_avx512bf16();
#endif
#if defined(TAMPU_AVX512)
    if (level == &LEVEL_AVX512)
        return has_avx512();
#endif
#if defined(TAMPU_AVXVNNI)
    if (level == &LEVEL_AVXVNNI)
        return has_avxvnni();
#endif
#if defined(TAMPU_AVX2)
    if (level == &LEVEL_AVX2)
        return has_avx2();
#endif
    return level == &LEVEL_AMX_EMULATED || level == &LEVEL_PORTABLE;
}

/* The usable level of this number, the fastest first. */
static const struct level *usable(int number)
{
    for (int i = 0; i < LEVEL_TOTAL; i++)
        if (is_usable(LEVELS[i]) && number-- == 0)
            return LEVELS[i];
    return NULL;
}

int tampu_level_count(void)
{
    int count = 0;
    while (usable(count))
        count++;
    return count;
}

const char *tampu_level_name(int number)
{
    const struct level *level = usable(number);
    return level ? level->name : "";
}

void *tampu_level_operation(int number, const char *name)
{
    const struct level *level = usable(number);
    if (level && strcmp(name, "quantize") == 0)
        return (void *)level->quantize;
    if (level && strcmp(name, "interleave") == 0)
        return (void *)level->interleave;
    if (level && strcmp(name, "product") == 0)
        return (void *)level->product;
    if (level && strcmp(name, "group") == 0)
        return (void *)level->group;
    if (level && strcmp(name, "product_each") == 0)
        return (void *)level->product_each;
    if (level && strcmp(name, "attention") == 0)
        return (void *)level->attention;
    if (level && strcmp(name, "delta_rule") == 0)
        return (void *)level->delta_rule;
    if (level && strcmp(name, "convolution") == 0)
        return (void *)level->convolution;
    if (level && strcmp(name, "weighted_total") == 0)
        return (void *)level->weighted_total;
    if (level && strcmp(name, "selective_scan") == 0)
        return (void *)level->selective_scan;
    return NULL;
}

/* How many operations of a kind (int8, int16, f32, bf16, amx int8) these rounds were; 0: the level has none. */
double tampu_level_peak(int number, const char *kind, int64_t rounds)
{
    const struct level *level = usable(number);
    double (*peak)(int64_t) = strcmp(kind, "int8") == 0    ? level->integer_peak
                              : strcmp(kind, "int16") == 0 ? level->word_peak
                              : strcmp(kind, "f32") == 0   ? level->float_peak
                              : strcmp(kind, "amx int8") == 0 ? level->tile_peak
                                                           : level->brain_peak;
    return peak ? peak(rounds) : 0.0;
}

/* Read memory in so many equal parts at once, with one of the hints. */
void tampu_level_read(int number, const void *from, int64_t bytes, int streams, int hint, int ahead)
{
    usable(number)->read_all(from, bytes, (struct fetch){hint, ahead, streams});
}

/* How a level wants weights of a type: one of ggml's types, or F16 as integers. The portable level, with
 * which the tests compare the others, can do these too, but multiplies floats unless the caller asks for integers. */
int tampu_level_layout(int number, int type, int64_t inputs)
{
    const struct level *level = usable(number);
    int is_plain = level == &LEVEL_PORTABLE || level == &LEVEL_AMX_EMULATED;
    int is_fixed = type == TYPE_F16 && inputs % FIXED == 0 && level->pack_fixed && !is_plain;
    return is_fixed ? TYPE_F16_FIXED : type;
}

void tampu_level_pack(int number, int layout, const void *source, void *packed, int64_t rows, int64_t inputs,
                      int64_t first_strip, int64_t strips)
{
    if (layout == TYPE_F16_FIXED)
        usable(number)->pack_fixed(source, packed, rows, inputs, first_strip, strips);
    else
        tampu_pack(layout, source, packed, rows, inputs, first_strip, strips);
}

/* Bytes of packed activations: of `tokens` rows, which may be those of some experts. */
int64_t tampu_level_activation_bytes(int number, int layout, int64_t experts, int64_t tokens, int64_t inputs)
{
    const struct level *level = usable(number);
    int64_t bytes = level->activation_bytes ? level->activation_bytes(layout, experts, tokens, inputs)
                                            : tokens * activation_row_bytes(layout, inputs);
    return (int64_t)sizeof(struct activations) + bytes;
}

int64_t tampu_plan_bytes(int64_t experts, int64_t rows)
{
    return plan_bytes(experts, rows);
}

int64_t tampu_tensor_offset(int field)
{
    const size_t offsets[] = {offsetof(struct tensor, ne), offsetof(struct tensor, nb),
                              offsetof(struct tensor, op_params), offsetof(struct tensor, src),
                              offsetof(struct tensor, data), sizeof(struct tensor)};
    int total = sizeof offsets / sizeof *offsets;
    return field >= 0 && field < total ? (int64_t)offsets[field] : -1;
}
