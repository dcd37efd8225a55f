/* What the library offers to the loader, and what each processor level offers to the library. */
#ifndef TAMPU_KERNELS_H
#define TAMPU_KERNELS_H

#include "tensor.h"

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

typedef void operation(struct tensor *dst, int thread, int threads, void *user);

/* Strips of a matrix into a packed layout. */
typedef void packing(const void *source, void *packed, int64_t rows, int64_t inputs, int64_t first_strip,
                     int64_t strips);

/* How memory is asked for ahead of its use: the hint of the instruction, if any, and how many bytes ahead. */
enum { FETCH_NONE, FETCH_NTA, FETCH_T2, FETCH_T1, FETCH_T0 };

struct fetch {
    int32_t hint;
    int32_t ahead;
    int32_t streams; /* places that are read at once by a thread */
};

/* One set of kernels, compiled for one set of processor features. */
struct level {
    const char *name;
    operation *quantize;   /* activations for quantized weights */
    operation *interleave; /* activations for weights that are floats */
    operation *product;
    operation *group;        /* activations for experts */
    operation *product_each; /* with the weights of experts */
    operation *attention;
    double (*integer_peak)(int64_t rounds);
    double (*word_peak)(int64_t rounds); /* NULL: it has no products of 16 bits */
    double (*float_peak)(int64_t rounds);
    double (*brain_peak)(int64_t rounds); /* NULL: it has no products of brain floats */
    void (*read_all)(const uint8_t *from, int64_t bytes, struct fetch fetch);
    packing *pack_fixed; /* halves as integers; NULL: it multiplies floats */
    /* Bytes of packed activations, of so many tokens for each of some experts; NULL: as `packed.h` says. */
    int64_t (*activation_bytes)(int type, int64_t experts, int64_t tokens, int64_t inputs);
    double (*tile_peak)(int64_t rounds); /* products of int8 by tiles; NULL: it has none */
    operation *delta_rule;
    operation *convolution; /* of a few tokens, before the rule */
    operation *weighted_total; /* of what experts return */
    operation *selective_scan;
};

extern const struct level LEVEL_PORTABLE;
extern const struct level LEVEL_NEON;
extern const struct level LEVEL_I8MM;
extern const struct level LEVEL_AVX2;
extern const struct level LEVEL_AVXVNNI;
extern const struct level LEVEL_AVX512;
extern const struct level LEVEL_AVX512BF16;
extern const struct level LEVEL_AMX;
extern const struct level LEVEL_AMX_EMULATED;

EXPORT extern const char *const tampu_sources; /* the digest of the files that this was compiled from */
EXPORT const char *tampu_amx_problem(void); /* why AMX is not used here; empty: the CPU has none; NULL: it is used */
EXPORT int tampu_level_count(void);
EXPORT const char *tampu_level_name(int level);
EXPORT void *tampu_level_operation(int level, const char *name);
EXPORT double tampu_level_peak(int level, const char *kind, int64_t rounds);
EXPORT void tampu_level_read(int level, const void *from, int64_t bytes, int streams, int hint, int ahead);
EXPORT int tampu_level_layout(int level, int type, int64_t inputs);
EXPORT void tampu_level_pack(int level, int layout, const void *source, void *packed, int64_t rows,
                             int64_t inputs, int64_t first_strip, int64_t strips);
EXPORT int64_t tampu_tensor_offset(int field);

EXPORT int64_t tampu_packed_bytes(int layout, int64_t matrices, int64_t rows, int64_t inputs);
EXPORT int64_t tampu_level_activation_bytes(int level, int layout, int64_t experts, int64_t tokens,
                                            int64_t inputs);
EXPORT int64_t tampu_plan_bytes(int64_t experts, int64_t rows);
EXPORT void tampu_pack(int type, const void *source, void *packed, int64_t rows, int64_t inputs,
                       int64_t first_strip, int64_t strips);

#endif
