/* What the kernels read of ggml's tensors. The loader compares these offsets with the bindings'. */
#ifndef TAMPU_TENSOR_H
#define TAMPU_TENSOR_H

#include <stddef.h>
#include <stdint.h>

/* ggml's numbers for the types that the kernels know. */
enum type {
    TYPE_F32 = 0,
    TYPE_F16 = 1,
    TYPE_Q4_0 = 2,
    TYPE_Q4_1 = 3,
    TYPE_Q5_0 = 6,
    TYPE_Q8_0 = 8,
    TYPE_Q4_K = 12,
    TYPE_Q5_K = 13,
    TYPE_Q6_K = 14,
    TYPE_IQ4_NL = 20,
    TYPE_BF16 = 30,
    TYPE_MXFP4 = 39,
    TYPE_F16_FIXED = 257, /* F16 as integers of 16 bits: a layout, no type of ggml's */
};

struct tensor {
    int32_t type;
    void *buffer;
    int64_t ne[4]; /* lengths, fastest dimension first */
    size_t nb[4];  /* bytes between neighbours along each dimension */
    int32_t op;
    int32_t op_params[16]; /* the first six belong to ggml's custom operation */
    int32_t flags;
    struct tensor *src[10];
    struct tensor *view_src;
    size_t view_offs;
    void *data;
    char name[64];
    void *extra;
    char padding[8];
};

#define OWN_PARAMS 6 /* index of the first op_params entry that is ours */

#endif
