/* The layouts that the kernels work on; docs/kernels.md draws them.
 *
 * Weights: strips of ROWS rows. A strip is a sequence of groups of 32 (or 256) inputs; a group holds
 * what its ROWS rows need for these inputs, the rows interleaved four inputs at a time: byte 4 r + t of
 * the 64-byte vector j belongs to row r and input 4 j + t. Rows past the last are zeros.
 *
 * Activations: a header, then panels of up to `columns` tokens. A panel is a sequence of blocks of 32
 * inputs; a block of N tokens holds N x 32 quantized inputs, then N each of four 32-bit numbers.
 */
#ifndef TAMPU_PACKED_H
#define TAMPU_PACKED_H

#include "tensor.h"

#define ROWS 16
#define BLOCK 32
#define FLOATS 16 /* inputs of a group of F16 or BF16 */
#define FIXED 64  /* inputs of a block of F16 as integers */
#define SUPER 256

enum {
    QUANTIZED_BLOCK = 48, /* bytes of one block of one token: inputs, scale, scaled sum, two sums */
    FIXED_BLOCK = 392,    /* the same: inputs, unit, whether they are exact, and then as floats */
    COUNTERS = 60,
    MAX_EXPERTS = 1024,
};

/* Leads the packed activations. Each product that uses them takes its work from its own counter, which
 * the packing operation before it has set to zero. */
struct activations {
    int64_t inputs;
    int32_t panels; /* for experts: how many of them have rows */
    int32_t counters[COUNTERS];
};

/* The inputs of one group and its bytes; 0 for a type without a packed layout. */
static inline int group_inputs(int type)
{
    switch (type) {
    case TYPE_F16: case TYPE_BF16:
        return FLOATS;
    case TYPE_F16_FIXED:
        return FIXED;
    case TYPE_Q4_0: case TYPE_Q4_1: case TYPE_Q5_0: case TYPE_Q8_0: case TYPE_IQ4_NL: case TYPE_MXFP4:
        return BLOCK;
    case TYPE_Q4_K: case TYPE_Q5_K: case TYPE_Q6_K:
        return SUPER;
    default:
        return 0;
    }
}

static inline size_t group_bytes(int type)
{
    switch (type) {
    case TYPE_F16: case TYPE_BF16:
        return ROWS * 2 * FLOATS;
    case TYPE_F16_FIXED: /* a strip begins with the exponents of all its groups */
        return ROWS * (1 + 2 * FIXED);
    case TYPE_Q4_0: case TYPE_IQ4_NL:
        return ROWS * (2 + 16);
    case TYPE_MXFP4:
        return ROWS * (1 + 16);
    case TYPE_Q4_1:
        return ROWS * (2 + 2 + 16);
    case TYPE_Q5_0:
        return ROWS * (2 + 4 + 16);
    case TYPE_Q8_0:
        return ROWS * (2 + 32);
    case TYPE_Q4_K:
        return ROWS * (2 + 2 + 8 * (1 + 1 + 16));
    case TYPE_Q5_K:
        return ROWS * (2 + 2 + 8 * (1 + 1 + 4 + 16));
    case TYPE_Q6_K:
        return ROWS * (2 + 8 * (2 + 8 + 16));
    default:
        return 0;
    }
}

static inline int is_floating(int type)
{
    return type == TYPE_F16 || type == TYPE_BF16;
}

static inline size_t strip_bytes_of(int type, int64_t inputs)
{
    return (size_t)(inputs / group_inputs(type)) * group_bytes(type);
}

/* The inputs of a block of activations for weights of this type. */
static inline int activation_block(int type)
{
    if (is_floating(type))
        return FLOATS;
    return type == TYPE_F16_FIXED ? FIXED : BLOCK;
}

/* Packed activations of one token. */
static inline int64_t activation_row_bytes(int type, int64_t inputs)
{
    if (is_floating(type))
        return inputs * 4;
    return inputs / activation_block(type) * (type == TYPE_F16_FIXED ? FIXED_BLOCK : QUANTIZED_BLOCK);
}

/* What lies between the header and the panels where each token uses some of many experts. */
static inline int64_t plan_bytes(int64_t experts, int64_t rows)
{
    return (2 * experts + 1 + rows + 15) / 16 * 64;
}

/* Panels are as equal as they can be: the first `tokens % panels` have one token more. */
static inline int32_t panel_count(int64_t tokens, int32_t columns)
{
    return (int32_t)((tokens + columns - 1) / columns);
}

static inline int64_t panel_begin(int64_t tokens, int32_t panels, int32_t index)
{
    int64_t even = tokens / panels, more = tokens % panels;
    return index * even + (index < more ? index : more);
}

#endif
