/* The selective scan of Mamba 2. States are read and written where they are, as in `recurrence.h`. */

/* What a token gives to all rows of a head's state. */
struct scanned {
    const float *b, *c;
    float decay, step;
};

INLINE struct scanned scanned_at(const struct tensor *dst, int64_t t, int64_t head, int64_t sequence)
{
    const struct tensor *b = dst->src[1], *c = dst->src[2];
    const int64_t group = head / (dst->src[0]->ne[1] / b->ne[1]);
    const float raw = *element_at(dst->src[3], head, t, sequence, 0);
    const float step = raw > 20.0f ? raw : log1pf(expf(raw));
    return (struct scanned){.b = element_at(b, 0, group, t, sequence),
                            .c = element_at(c, 0, group, t, sequence),
                            .decay = exponential(step * *element_at(dst->src[4], 0, head, 0, 0)),
                            .step = step};
}

/* A token's step for a few rows of a state, those from `from` on. It is read once, and may be written to the same
 * memory. */
INLINE void scan_rows(const float *before, const struct after *after, int64_t from, int64_t size,
                      const struct scanned *token, const float *x, float skip, float *out)
{
    vf sum[RULE_ROWS], change[RULE_ROWS];
    const vf decay = vf_splat(token->decay);
    for (int r = 0; r < RULE_ROWS; r++) {
        sum[r] = vf_zero();
        change[r] = vf_splat(token->step * x[r]);
    }
    for (int64_t i = 0; i < size; i += 16) {
        const vf b = vf_load(token->b + i), c = vf_load(token->c + i);
        for (int r = 0; r < RULE_ROWS; r++) {
            const int64_t at = from + r * size + i;
            const vf s = vf_fma(b, change[r], vf_mul(vf_load(before + at), decay));
            store_after(after, at, s);
            sum[r] = vf_fma(s, c, sum[r]);
        }
    }
    for (int r = 0; r < RULE_ROWS; r++)
        out[r] = vf_total(sum[r]) + skip * x[r];
}

/* The same for `vectors` times sixteen rows of a turned block: the state divided by the decays since it was last
 * scaled, whose product `decay` is. */
INLINE void scan_turned(float *block, int64_t size, int vectors, const struct scanned *token, float decay,
                        const float *x, float skip, float *out)
{
    vf sum[TURNED_VECTORS], change[TURNED_VECTORS];
    const vf grown = vf_splat(token->step / decay);
    for (int v = 0; v < vectors; v++) {
        sum[v] = vf_zero();
        change[v] = vf_mul(vf_load(x + v * 16), grown);
    }
    for (int64_t i = 0; i < size; i++) {
        const vf b = vf_splat(token->b[i]), c = vf_splat(token->c[i]);
        for (int v = 0; v < vectors; v++) {
            float *at = block + (i * vectors + v) * 16;
            const vf s = vf_fma(b, change[v], vf_load(at));
            vf_store(at, s);
            sum[v] = vf_fma(s, c, sum[v]);
        }
    }
    for (int v = 0; v < vectors; v++) {
        const vf kept = vf_mul(vf_splat(decay), sum[v]);
        vf_store(out + v * 16, vf_fma(vf_splat(skip), vf_load(x + v * 16), kept));
    }
}

INLINE float *scan_output(const struct tensor *dst, int64_t t, int64_t head, int64_t sequence)
{
    const struct tensor *x = dst->src[0];
    return (float *)dst->data + ((sequence * x->ne[2] + t) * x->ne[1] + head) * x->ne[0];
}

static void scan_block(const struct tensor *dst, const struct part *part, int64_t head, int64_t row, int64_t rows,
                       const float *before, float *stored)
{
    _Alignas(64) float spare[RULE_UNIT * MAX_TURNED]; /* the state between tokens */
    const int64_t size = dst->src[1]->ne[0];
    const float skip = *element_at(dst->src[5], 0, head, 0, 0);
    float *const between = size <= MAX_TURNED ? spare : stored;
    for (int64_t t = 0; t < part->tokens; t++) {
        const int64_t at = token_place(part, t);
        const struct scanned token = scanned_at(dst, at, head, part->outer);
        const float *x = element_at(dst->src[0], row, head, at, part->outer);
        float *out = scan_output(dst, at, head, part->outer) + row;
        const struct after after = after_token(part, t, between, stored);
        for (int64_t r = 0; r < rows; r += RULE_ROWS)
            scan_rows(before, &after, r * size, size, &token, x + r, skip, out + r);
        before = between;
    }
}

INLINE void scan_turned_block(const struct tensor *dst, int64_t sequence, int64_t head, int64_t row, int vectors,
                              const float *before, float *after)
{
    _Alignas(64) float block[MAX_TURNED * TURNED_VECTORS * 16];
    const int64_t size = dst->src[1]->ne[0], tokens = dst->src[0]->ne[2], rows = vectors * 16;
    const float skip = *element_at(dst->src[5], 0, head, 0, 0);
    for (int64_t i = 0; i < size; i++)
        for (int64_t r = 0; r < rows; r++)
            block[i * rows + r] = before[r * size + i];
    float decay = 1.0f;
    for (int64_t t = 0; t < tokens; t++) {
        const struct scanned token = scanned_at(dst, t, head, sequence);
        decay *= token.decay;
        if (!(decay >= LEAST_DECAY)) {
            scale_block(block, size * rows, decay);
            decay = 1.0f;
        }
        scan_turned(block, size, vectors, &token, decay, element_at(dst->src[0], row, head, t, sequence), skip,
                    scan_output(dst, t, head, sequence) + row);
    }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < size; i++)
            after[r * size + i] = block[i * rows + r] * decay;
}

/* dst: F32, the outputs (sequences, tokens, heads, features); src: inputs of that shape, b and c (sequences, tokens,
 * groups, size), steps before the softplus (sequences, tokens, heads), decays and skips (heads, 1), states (cells,
 * heads features size), and for each sequence the cell that it reads, and the one that it writes, or parts. No sequence
 * writes what another reads. Features and sizes are multiples of 16, with parts sizes are at most MAX_TURNED. Rows of
 * a state do not depend on one another. The parameters: the first one of the delta rule; whether there are parts. */
static void selective_scan(struct tensor *dst, int thread, int threads, void *user)
{
    const struct tensor *x = dst->src[0], *states = dst->src[6];
    const struct tensor *parts = dst->op_params[OWN_PARAMS + 1] ? dst->src[8] : NULL;
    const int64_t features = x->ne[0], heads = x->ne[1], size = dst->src[1]->ne[0];
    const int64_t sequences = parts ? parts->ne[1] : x->ne[3];
    const int is_one_by_one = dst->op_params[OWN_PARAMS] || parts;
    const int is_turned = !is_one_by_one && x->ne[2] >= TURNED_TOKENS && size <= MAX_TURNED;
    const int64_t most = is_turned ? TURNED_VECTORS * 16 : RULE_UNIT, unit = features < most ? features : most;
    const int64_t units = (features + unit - 1) / unit;
    (void)user;
    if (parts)
        clear_unused(parts, dst->data, features * heads, thread, threads);
    for (int64_t at = thread; at < sequences * heads * units; at += threads) {
        const int64_t row = at % units * unit, head = at / units % heads, sequence = at / units / heads;
        const int64_t rows = features - row < unit ? features - row : unit, place = (head * features + row) * size;
        const struct part part = part_at(parts, sequence, x->ne[2]);
        const float *before = row_at(states, dst->src[7], sequence) + place;
        float *after = row_after(states, dst->src[8], parts != NULL, sequence) + place;
        if (is_turned && rows == TURNED_VECTORS * 16)
            scan_turned_block(dst, sequence, head, row, TURNED_VECTORS, before, after);
        else if (is_turned)
            for (int64_t r = 0; r < rows; r += 16)
                scan_turned_block(dst, sequence, head, row + r, 1, before + r * size, after + r * size);
        else
            scan_block(dst, &part, head, row, rows, before, after);
    }
    vf_stream_end();
}
