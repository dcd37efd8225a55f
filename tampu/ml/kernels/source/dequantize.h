/* Weights as BF16, as tiles want them: for each 32 inputs of a strip 1 KB, sixteen rows of pairs of inputs,
 * a pair for each of the strip's rows. A type is multiplied in one plane, which is its weights rounded, or
 * (F16) in two: the weights rounded and what the rounding took away, together exact. */

#define TILE_BYTES 1024 /* 32 inputs of sixteen rows, or of sixteen tokens */
#define TILE_INPUTS 32

INLINE int planes_of(int type)
{
    return type == TYPE_F16 || type == TYPE_F16_FIXED ? 2 : 1;
}

INLINE int is_signed_type(int type)
{
    return type == TYPE_Q8_0 || type == TYPE_IQ4_NL;
}

/* Integers become floats where they are, at bit `at`: with the exponent of 2^23 set they read as
 * 2^23 + number * 2^at, and one multiplication takes both powers off again: number * scale + offset.
 * The sum is rounded once; eight bits or more from the
 * lowest, what the offset loses beside 2^23 is small beside what BF16 rounds. */
struct linear {
    vf scale, offset;
};

INLINE struct linear linear_at(int at, vf scale, vf offset)
{
    const vf power = vf_splat((float)(1 << (23 - at)));
    return (struct linear){vf_mul(scale, vf_splat(1.0f / (float)(1 << at))),
                           vf_sub(offset, vf_mul(scale, power))};
}

INLINE vf number_at(vi bits, int at, int width, struct linear linear)
{
    const vi mask = vi_splat(((1 << width) - 1) << at), power = vi_splat(0x4b000000);
    return vf_fused(vf_as_float(vi_and_or(bits, mask, power)), linear.scale, linear.offset);
}

/* Four inputs of sixteen rows, one unsigned byte each, to two rows of a tile. */
INLINE void put_bytes(vi bytes, struct linear linear, uint8_t *to)
{
    vi_store(to, vi_brain_pairs(number_at(vi_left(bytes, 8), 8, 8, linear), number_at(bytes, 8, 8, linear)));
    vi_store(to + 64, vi_brain_pairs(number_at(vi_right(bytes, 8), 8, 8, linear),
                                     number_at(vi_right(bytes, 16), 8, 8, linear)));
}

/* Four inputs from the lower halves of sixteen rows' bytes to two rows of a tile, and four from the upper
 * halves to two rows of the tile's second half; the numbers are at bits 8, 12 and 16. */
INLINE void put_nibble_pairs(vi both, const struct linear *at, uint8_t *to)
{
    const vi left = vi_left(both, 12), right = vi_right(both, 12);
    uint8_t *back = to + TILE_BYTES / 2;
    vi_store(to, vi_brain_pairs(number_at(left, 12, 4, at[1]), number_at(both, 8, 4, at[0])));
    vi_store(to + 64, vi_brain_pairs(number_at(both, 16, 4, at[2]), number_at(right, 12, 4, at[1])));
    vi_store(back, vi_brain_pairs(number_at(left, 16, 4, at[2]), number_at(both, 12, 4, at[1])));
    vi_store(back + 64, vi_brain_pairs(number_at(right, 8, 4, at[0]), number_at(right, 16, 4, at[2])));
}

/* Four inputs with the sign that lanes of no bias keep, as 128 more than they are. */
INLINE vi without_sign(int type, vi bytes)
{
    if (!is_signed_type(type) || SIGNED_BIAS)
        return bytes;
    const vi top = vi_splat8(-128), low = vi_splat8(127);
    return vi_or(vi_and(vi_add(vi_and(bytes, top), top), top), vi_and(bytes, low));
}

INLINE void dequantize_block(int type, const struct block *b, vi table, uint8_t *to)
{
    const vf zero = vf_splat((float)(is_signed_type(type) ? -128 : -zero_point(type)));
    const vf offset = has_minimum(type) ? vf_mul(b->minimum, vf_splat(-1.0f)) : vf_mul(b->scale, zero);
    const struct linear front = linear_at(8, b->scale, offset);
    if (type == TYPE_Q4_0 || type == TYPE_Q4_1 || type == TYPE_Q4_K) {
        const struct linear at[] = {front, linear_at(12, b->scale, offset), linear_at(16, b->scale, offset)};
        UNROLL for (int j = 0; j < 4; j++) put_nibble_pairs(vi_load(b->nibbles + 64 * j), at, to + 128 * j);
        return;
    }
    const struct linear back =
        type == TYPE_Q6_K ? linear_at(8, b->scale_back, vf_mul(b->scale_back, zero)) : front;
    UNROLL for (int j = 0; j < 4; j++)
    {
        vi one, other;
        weights_of(type, b->nibbles, table, b->planes, j, &one, &other);
        put_bytes(without_sign(type, one), front, to + 128 * j);
        put_bytes(without_sign(type, other), back, to + TILE_BYTES / 2 + 128 * j);
    }
}

/* Block `k / 32` of a strip. */
INLINE void dequantize_at(int type, const uint8_t *strip, int64_t k, uint8_t *to)
{
    const vi table = type == TYPE_IQ4_NL ? vi_signed_weights(vi_table(IQ4_NL_VALUES)) : vi_table(FP4_VALUES);
    const int inputs = group_inputs(type);
    const uint8_t *w = strip + (size_t)(k / inputs) * group_bytes(type);
    vf scale = vf_zero(), minimum = vf_zero();
    if (inputs > BLOCK) {
        const size_t head = (has_minimum(type) ? 4 : 2) * ROWS;
        scale = vf_load_half(w);
        if (has_minimum(type))
            minimum = vf_load_half(w + 2 * ROWS);
        w += head + (size_t)(k % inputs) / BLOCK * ((group_bytes(type) - head) / (SUPER / BLOCK));
    }
    struct block b;
    read_block(type, w, scale, minimum, &b);
    dequantize_block(type, &b, table, to);
}

/* The same of halves, in two planes, so many bytes apart; `count`: of inputs, 32 or the last 16. */
INLINE void split_halves(const uint8_t *w, int64_t count, uint8_t *to, size_t plane)
{
    for (int64_t k = 0; k < TILE_INPUTS; k += 2, to += 64, w += 4 * ROWS) {
        const vf one = k < count ? vf_load_half(w) : vf_zero();
        const vf other = k < count ? vf_load_half(w + 2 * ROWS) : vf_zero();
        const vi pairs = vi_brain_pairs(one, other);
        const vf rest = vf_sub(one, vf_as_float(vi_left(pairs, 16)));
        const vf other_rest = vf_sub(other, vf_as_float(vi_and(pairs, vi_splat((int32_t)0xffff0000))));
        vi_store(to, pairs);
        vi_store(to + plane, vi_brain_pairs(rest, other_rest));
    }
}

/* Inputs `k` to `k + 32` (the last ones may be sixteen) of a strip to a tile, and to another one `plane` bytes
 * behind it if the type has two planes. */
static void dequantize(int type, const uint8_t *strip, int64_t inputs, int64_t k, uint8_t *to, size_t plane)
{
    const int64_t count = inputs - k < TILE_INPUTS ? inputs - k : TILE_INPUTS;
    switch (type) {
    case TYPE_Q4_0: dequantize_at(TYPE_Q4_0, strip, k, to); break;
    case TYPE_Q4_1: dequantize_at(TYPE_Q4_1, strip, k, to); break;
    case TYPE_Q5_0: dequantize_at(TYPE_Q5_0, strip, k, to); break;
    case TYPE_Q8_0: dequantize_at(TYPE_Q8_0, strip, k, to); break;
    case TYPE_Q4_K: dequantize_at(TYPE_Q4_K, strip, k, to); break;
    case TYPE_Q5_K: dequantize_at(TYPE_Q5_K, strip, k, to); break;
    case TYPE_Q6_K: dequantize_at(TYPE_Q6_K, strip, k, to); break;
    case TYPE_IQ4_NL: dequantize_at(TYPE_IQ4_NL, strip, k, to); break;
    case TYPE_MXFP4: dequantize_at(TYPE_MXFP4, strip, k, to); break;
    case TYPE_F16: split_halves(strip + 2 * ROWS * k, count, to, plane); break;
    case TYPE_F16_FIXED: split_halves(strip + inputs / FIXED * ROWS + 2 * ROWS * k, count, to, plane); break;
    default: /* BF16: as it is */
        memset(to + 2 * ROWS * count, 0, (size_t)(2 * ROWS * (TILE_INPUTS - count)));
        memcpy(to, strip + 2 * ROWS * k, (size_t)(2 * ROWS * count));
    }
}
