/* Weights from the file's layout into strips; see packed.h. Works on 32-bit words of four inputs. */
#include <string.h>

#include "kernels.h"
#include "packed.h"

#define LOW 0x0f0f0f0fu
#define ONES 0x01010101u

static uint32_t word(const uint8_t *bytes, int index)
{
    uint32_t value;
    memcpy(&value, bytes + 4 * index, 4);
    return value;
}

static void put_word(uint8_t *vectors, int vector, int row, uint32_t value)
{
    memcpy(vectors + 64 * vector + 4 * row, &value, 4);
}

static void put_half(uint8_t *at, int row, const uint8_t *half)
{
    memcpy(at + 2 * row, half, 2);
}

/* Nibbles in the file's order of 32-blocks: the low halves are inputs 0..15, as in a strip. */
static void put_nibbles(uint8_t *vectors, int row, const uint8_t *bytes)
{
    for (int j = 0; j < 4; j++)
        put_word(vectors, j, row, word(bytes, j));
}

/* Two 32-blocks in the low and the high halves of 32 bytes, as K types have them: take one of both. */
static void put_nibbles_of(uint8_t *vectors, int row, const uint8_t *bytes, int high)
{
    for (int j = 0; j < 4; j++) {
        uint32_t front = word(bytes, j) >> (4 * high) & LOW;
        uint32_t back = word(bytes, j + 4) >> (4 * high) & LOW;
        put_word(vectors, j, row, front | back << 4);
    }
}

/* A fifth bit: bit j of byte t is that of input 4 j + t. */
static uint32_t spread_bits(uint32_t bits)
{
    uint32_t plane = 0;
    for (int j = 0; j < 8; j++)
        plane |= ((bits >> (4 * j) & 15) * 0x00204081u & ONES) << j;
    return plane;
}

static void pack_q4_0(const uint8_t *block, uint8_t *group, int row)
{
    put_half(group, row, block);
    put_nibbles(group + 2 * ROWS, row, block + 2);
}

static void pack_mxfp4(const uint8_t *block, uint8_t *group, int row)
{
    group[row] = block[0];
    put_nibbles(group + ROWS, row, block + 1);
}

static void pack_q4_1(const uint8_t *block, uint8_t *group, int row)
{
    put_half(group, row, block);
    put_half(group + 2 * ROWS, row, block + 2);
    put_nibbles(group + 4 * ROWS, row, block + 4);
}

static void pack_q5_0(const uint8_t *block, uint8_t *group, int row)
{
    put_half(group, row, block);
    put_word(group + 2 * ROWS, 0, row, spread_bits(word(block + 2, 0)));
    put_nibbles(group + 6 * ROWS, row, block + 6);
}

static void pack_q8_0(const uint8_t *block, uint8_t *group, int row)
{
    put_half(group, row, block);
    for (int j = 0; j < 8; j++)
        put_word(group + 2 * ROWS, j, row, word(block + 2, j));
}

/* The six-bit scale and minimum of block `b` of a K type: twelve bytes hold eight of each. */
static void unpack_scale(const uint8_t *bytes, int b, uint8_t *scale, uint8_t *minimum)
{
    if (b < 4) {
        *scale = bytes[b] & 63;
        *minimum = bytes[b + 4] & 63;
    } else {
        *scale = (uint8_t)((bytes[b + 4] & 15) | (bytes[b - 4] >> 6) << 4);
        *minimum = (uint8_t)(bytes[b + 4] >> 4 | (bytes[b] >> 6) << 4);
    }
}

/* Q4_K and Q5_K: two halves, twelve bytes of scales, for Q5_K 32 bytes of fifth bits, nibbles. */
static void pack_q45_k(const uint8_t *block, uint8_t *group, int row, int fifth)
{
    const uint8_t *bits = block + 16, *nibbles = bits + (fifth ? 32 : 0);
    put_half(group, row, block);
    put_half(group + 2 * ROWS, row, block + 2);
    uint8_t *part = group + 4 * ROWS;
    for (int b = 0; b < 8; b++) {
        unpack_scale(block + 4, b, &part[row], &part[ROWS + row]);
        part += 2 * ROWS;
        if (fifth) {
            uint32_t plane = 0;
            for (int j = 0; j < 8; j++)
                plane |= (word(bits, j) >> b & ONES) << j;
            put_word(part, 0, row, plane);
            part += 4 * ROWS;
        }
        put_nibbles_of(part, row, nibbles + 32 * (b / 2), b % 2);
        part += 16 * ROWS;
    }
}

static void pack_q4_k(const uint8_t *block, uint8_t *group, int row)
{
    pack_q45_k(block, group, row, 0);
}

static void pack_q5_k(const uint8_t *block, uint8_t *group, int row)
{
    pack_q45_k(block, group, row, 1);
}

/* 128 bytes of nibbles, 64 of upper bit pairs, 16 signed scales, a half. */
static void pack_q6_k(const uint8_t *block, uint8_t *group, int row)
{
    put_half(group, row, block + 208);
    uint8_t *part = group + 2 * ROWS;
    for (int b = 0; b < 8; b++) {
        int quarter = b % 4;
        const uint8_t *nibbles = block + 64 * (b / 4) + 32 * (quarter % 2);
        const uint8_t *pairs = block + 128 + 32 * (b / 4);
        part[row] = block[192 + 2 * b];
        part[ROWS + row] = block[192 + 2 * b + 1];
        part += 2 * ROWS;
        for (int half = 0; half < 2; half++) {
            uint32_t plane = 0;
            for (int j = 0; j < 4; j++)
                plane |= (word(pairs, 4 * half + j) >> (2 * quarter) & 3 * ONES) << (2 * j);
            put_word(part, half, row, plane);
        }
        part += 8 * ROWS;
        put_nibbles_of(part, row, nibbles, quarter / 2);
        part += 16 * ROWS;
    }
}

/* F16 stays as it is, one input of all rows after the other; BF16 by pairs of inputs. */
static void pack_f16(const uint8_t *block, uint8_t *group, int row)
{
    for (int k = 0; k < FLOATS; k++)
        memcpy(group + 2 * (ROWS * k + row), block + 2 * k, 2);
}

static void pack_bf16(const uint8_t *block, uint8_t *group, int row)
{
    for (int k = 0; k < FLOATS; k += 2)
        memcpy(group + 2 * ROWS * k + 4 * row, block + 2 * k, 4);
}

struct packer {
    int type;
    size_t block_bytes; /* in the file, of group_inputs(type) inputs */
    void (*pack)(const uint8_t *block, uint8_t *group, int row);
};

static const struct packer PACKERS[] = {
    {TYPE_F16, 32, pack_f16},       {TYPE_BF16, 32, pack_bf16},   {TYPE_Q4_0, 18, pack_q4_0},
    {TYPE_Q4_1, 20, pack_q4_1},     {TYPE_Q5_0, 22, pack_q5_0},   {TYPE_Q8_0, 34, pack_q8_0},
    {TYPE_Q4_K, 144, pack_q4_k},    {TYPE_Q5_K, 176, pack_q5_k},  {TYPE_Q6_K, 210, pack_q6_k},
    {TYPE_IQ4_NL, 18, pack_q4_0},   {TYPE_MXFP4, 17, pack_mxfp4},
};

static const struct packer *find_packer(int type)
{
    for (size_t i = 0; i < sizeof PACKERS / sizeof *PACKERS; i++)
        if (PACKERS[i].type == type)
            return &PACKERS[i];
    return NULL;
}

int64_t tampu_packed_bytes(int type, int64_t matrices, int64_t rows, int64_t inputs)
{
    int group = group_inputs(type);
    if (group == 0 || matrices < 1 || matrices > MAX_EXPERTS || rows < 1 || inputs < group || inputs % group != 0)
        return 0;
    return matrices * ((rows + ROWS - 1) / ROWS) * (inputs / group) * (int64_t)group_bytes(type);
}

void tampu_pack(int type, const void *source, void *packed, int64_t rows, int64_t inputs,
                int64_t first_strip, int64_t strips)
{
    const struct packer *packer = find_packer(type);
    int64_t groups = inputs / group_inputs(type);
    size_t row_bytes = (size_t)groups * packer->block_bytes, bytes = group_bytes(type);
    for (int64_t strip = first_strip; strip < first_strip + strips; strip++) {
        uint8_t *to = (uint8_t *)packed + (size_t)(strip * groups) * bytes;
        int64_t left = rows - strip * ROWS;
        int there = left < ROWS ? (int)left : ROWS;
        const uint8_t *from = (const uint8_t *)source + (size_t)(strip * ROWS) * row_bytes;
        for (int64_t g = 0; g < groups; g++, to += bytes) {
            if (there < ROWS)
                memset(to, 0, bytes);
            for (int row = 0; row < there; row++)
                packer->pack(from + row * row_bytes + g * packer->block_bytes, to, row);
        }
    }
}
