/* Recurrent layers: the gated delta rule, and the short convolution before it.
 *
 * Both read states from some rows of the cache and write those after the last token to others, so nothing is
 * copied before or after.
 *
 * With `parts` the operands are one list of tokens, (1, tokens, ...), of which each sequence has its own number. Its
 * first tokens are replayed: the state does not have them yet, though a batch before had them. Then come its new
 * tokens, the last of which may be drafts: the state is written after the last one that is none. */

enum { RULE_ROWS = COLUMNS > 4 ? 4 : 2, RULE_UNIT = 32, CONVOLVED = 256, MAX_WIDTH = 8 };

/* From so many tokens on a block of a state is turned, so that its rows are the lanes of vectors and no sum runs
 * across them; then a block has this many vectors, for heads of at most so many features. */
enum { TURNED_TOKENS = 16, TURNED_VECTORS = COLUMNS > 4 ? 4 : 2, MAX_TURNED = 256 };

INLINE const float *element_at(const struct tensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3)
{
    return (const float *)((const char *)t->data + i0 * (int64_t)t->nb[0] + i1 * (int64_t)t->nb[1]
                           + i2 * (int64_t)t->nb[2] + i3 * (int64_t)t->nb[3]);
}

#define LEAST_DECAY 1e-9f /* a turned block is scaled before its numbers are divided by less */

/* The row of `states` whose number is at a place of `rows`, whose numbers are I32 or I64. */
INLINE float *row_at(const struct tensor *states, const struct tensor *rows, int64_t place)
{
    const char *at = (const char *)rows->data + place * (int64_t)rows->nb[0];
    const int64_t row = rows->nb[0] == 4 ? *(const int32_t *)at : *(const int64_t *)at;
    return (float *)((char *)states->data + row * (int64_t)states->nb[1]);
}

/* The tokens of a sequence: those that are replayed, and the new ones.
 *
 * parts: I32, (sequences, 6): the first token that is replayed, and how many are; the first new one, how many are no
 * drafts, and how many there are; the cell that is written. All that are replayed lie before all new ones, in the
 * order of the sequences. */
struct part {
    int64_t outer; /* the place of the sequence in operands that have one for each */
    int64_t from, replayed, first;
    int64_t stored; /* after how many of its tokens the state is written; 0: it is not */
    int64_t tokens;
    int64_t written; /* the cell of the state, with parts */
};

INLINE struct part part_at(const struct tensor *parts, int64_t sequence, int64_t tokens)
{
    if (!parts)
        return (struct part){.outer = sequence, .stored = tokens, .tokens = tokens};
    const int32_t *at = (const int32_t *)((const char *)parts->data + sequence * (int64_t)parts->nb[1]);
    return (struct part){.from = at[0],
                         .replayed = at[1],
                         .first = at[2],
                         .stored = at[3] ? at[1] + at[3] : 0,
                         .tokens = at[1] + at[4],
                         .written = at[5]};
}

/* Where a token of a sequence is among those of the operands. */
INLINE int64_t token_place(const struct part *part, int64_t t)
{
    return t < part->replayed ? part->from + t : part->first + t - part->replayed;
}

/* The row of `states` that a sequence writes; `rows` has the numbers of these rows, or parts. */
INLINE float *row_after(const struct tensor *states, const struct tensor *rows, int has_parts, int64_t sequence)
{
    if (!has_parts)
        return row_at(states, rows, sequence);
    return (float *)((char *)states->data + part_at(rows, sequence, 0).written * (int64_t)states->nb[1]);
}

/* Zeros for the places between those that are replayed and the new ones, which no sequence has. */
INLINE void clear_unused(const struct tensor *parts, float *out, int64_t width, int thread, int threads)
{
    const struct part first = part_at(parts, 0, 0), last = part_at(parts, parts->ne[1] - 1, 0);
    for (int64_t row = last.from + last.replayed + thread; row < first.first; row += threads)
        memset(out + row * width, 0, sizeof *out * (size_t)width);
}

INLINE float product_of(const float *a, const float *b, int64_t count)
{
    vf sum = vf_zero();
    for (int64_t i = 0; i < count; i += 16)
        sum = vf_fma(vf_load(a + i), vf_load(b + i), sum);
    return vf_total(sum);
}

/* What a token gives to all rows of a head's state. Rows are multiplied by `read_key` and `read_query`, and `key` is
 * added to them. These are the key and the query where a head has one decay. Where each feature of the keys has its
 * own, the rows are multiplied by both with the decays in them, `decay` is 1, and `decays` are the features'. */
struct token {
    const float *key, *read_key, *read_query, *decays;
    float decay, beta, kq, scale;
};

/* The vectors of a token whose features have decays of their own. */
struct decayed {
    _Alignas(64) float decays[MAX_TURNED], key[MAX_TURNED], read_key[MAX_TURNED], read_query[MAX_TURNED];
};

/* Where a state goes after a token: to `next`, which the next token reads, and to `stored`, in the cache; NULL: not
 * there. A step reads the states of all sequences once and writes them once, and reads all weights before it needs them
 * again, so what is stored is written past the caches. */
struct after {
    float *next, *stored;
    int is_streamed; /* whether `stored` is written past the caches */
};

INLINE struct after after_token(const struct part *part, int64_t t, float *spare, float *stored)
{
    return (struct after){.next = t + 1 < part->tokens ? spare : NULL,
                          .stored = t + 1 == part->stored ? stored : NULL,
                          .is_streamed = (uintptr_t)stored % 64 == 0};
}

INLINE void store_after(const struct after *after, int64_t at, vf x)
{
    if (after->next)
        vf_store(after->next + at, x);
    if (after->stored && after->is_streamed)
        vf_stream(after->stored + at, x);
    else if (after->stored)
        vf_store(after->stored + at, x);
}

/* A token's step for a few rows of a state, those from `from` on. With the state S before, the output is decay S q +
 * d (k q), so that one pass reads S for both products, and another writes the state after, which may be the same
 * memory. */
INLINE void step_rows(const float *before, const struct after *after, int64_t from, int64_t features,
                      const struct token *token, const float *value, float *out)
{
    vf known[RULE_ROWS], wanted[RULE_ROWS], change[RULE_ROWS];
    for (int r = 0; r < RULE_ROWS; r++)
        known[r] = wanted[r] = vf_zero();
    for (int64_t i = 0; i < features; i += 16) {
        const vf key = vf_load(token->read_key + i), query = vf_load(token->read_query + i);
        for (int r = 0; r < RULE_ROWS; r++) {
            const vf x = vf_load(before + from + r * features + i);
            known[r] = vf_fma(x, key, known[r]);
            wanted[r] = vf_fma(x, query, wanted[r]);
        }
    }
    for (int r = 0; r < RULE_ROWS; r++) {
        const float d = token->beta * (value[r] - token->decay * vf_total(known[r]));
        out[r] = token->scale * (token->decay * vf_total(wanted[r]) + d * token->kq);
        change[r] = vf_splat(d);
    }
    if (!after->next && !after->stored)
        return;
    for (int64_t i = 0; i < features; i += 16) {
        const vf key = vf_load(token->key + i);
        const vf decay = token->decays ? vf_load(token->decays + i) : vf_splat(token->decay);
        for (int r = 0; r < RULE_ROWS; r++) {
            const int64_t at = from + r * features + i;
            store_after(after, at, vf_fma(key, change[r], vf_mul(vf_load(before + at), decay)));
        }
    }
}

/* A token's step for `vectors` times sixteen rows of a turned block: a line of these for each of the features. The
 * block is the state divided by the decays since it was last scaled, whose product the token's decay is, here. */
INLINE void step_turned(float *block, int64_t features, int vectors, const struct token *token,
                        const float *value, float *out)
{
    vf known[TURNED_VECTORS], wanted[TURNED_VECTORS];
    for (int v = 0; v < vectors; v++)
        known[v] = wanted[v] = vf_zero();
    for (int64_t i = 0; i < features; i++) {
        const vf key = vf_splat(token->read_key[i]), query = vf_splat(token->read_query[i]);
        for (int v = 0; v < vectors; v++) {
            const vf x = vf_load(block + (i * vectors + v) * 16);
            known[v] = vf_fma(x, key, known[v]);
            wanted[v] = vf_fma(x, query, wanted[v]);
        }
    }
    const vf decay = vf_splat(token->decay), grown = vf_splat(1.0f / token->decay);
    const vf beta = vf_splat(token->beta), kq = vf_splat(token->kq), scale = vf_splat(token->scale);
    for (int v = 0; v < vectors; v++) {
        const vf d = vf_mul(beta, vf_sub(vf_load(value + v * 16), vf_mul(decay, known[v])));
        vf_store(out + v * 16, vf_mul(scale, vf_fma(d, kq, vf_mul(decay, wanted[v]))));
        known[v] = vf_mul(d, grown);
    }
    for (int64_t i = 0; i < features; i++) {
        const vf key = vf_splat(token->key[i]);
        for (int v = 0; v < vectors; v++) {
            float *x = block + (i * vectors + v) * 16;
            vf_store(x, vf_fma(key, known[v], vf_load(x)));
        }
    }
}

INLINE void scale_block(float *block, int64_t count, float factor)
{
    const vf by = vf_splat(factor);
    for (int64_t i = 0; i < count; i += 16)
        vf_store(block + i, vf_mul(vf_load(block + i), by));
}

/* Whether each feature of the keys has a decay of its own. */
INLINE int decays_each(const struct tensor *dst)
{
    return dst->op_params[OWN_PARAMS + 1];
}

/* What a token gives to the states of a head; `room` is used where each feature has a decay. */
INLINE struct token token_at(const struct tensor *dst, int64_t t, int64_t head, int64_t sequence, struct decayed *room)
{
    const struct tensor *q = dst->src[0], *k = dst->src[1], *logs = dst->src[3];
    const int64_t features = k->ne[0], key_head = head % k->ne[1];
    const float *key = element_at(k, 0, key_head, t, sequence), *query = element_at(q, 0, key_head, t, sequence);
    struct token token = {.key = key, .read_key = key, .read_query = query, .decay = 1.0f,
                          .beta = *element_at(dst->src[4], head, t, sequence, 0),
                          .kq = product_of(key, query, features), .scale = 1.0f / sqrtf((float)features)};
    if (!decays_each(dst)) {
        token.decay = exponential(*element_at(logs, head, t, sequence, 0));
        return token;
    }
    const float *log = element_at(logs, 0, head, t, sequence);
    for (int64_t i = 0; i < features; i += 16) {
        const vf decay = vf_exp(vf_load(log + i));
        vf_store(room->decays + i, decay);
        vf_store(room->read_key + i, vf_mul(vf_load(key + i), decay));
        vf_store(room->read_query + i, vf_mul(vf_load(query + i), decay));
    }
    token.read_key = room->read_key, token.read_query = room->read_query, token.decays = room->decays;
    return token;
}

/* The same for a block whose features were divided by `total`, their decays since they were last scaled. */
INLINE struct token turned_token(const struct tensor *dst, int64_t t, int64_t head, int64_t sequence,
                                 struct decayed *room, float *total, float *block, int64_t rows)
{
    struct token token = token_at(dst, t, head, sequence, room);
    const float *query = element_at(dst->src[0], 0, head % dst->src[1]->ne[1], t, sequence);
    for (int64_t i = 0; i < dst->src[1]->ne[0]; i++) {
        total[i] *= room->decays[i];
        if (!(total[i] >= LEAST_DECAY)) {
            scale_block(block + i * rows, rows, total[i]);
            total[i] = 1.0f;
        }
        room->read_key[i] = token.key[i] * total[i];
        room->read_query[i] = query[i] * total[i];
        room->key[i] = token.key[i] / total[i];
    }
    token.key = room->key;
    return token;
}

INLINE float *output_at(const struct tensor *dst, int64_t t, int64_t head, int64_t sequence)
{
    const struct tensor *v = dst->src[2];
    return (float *)dst->data + ((sequence * v->ne[2] + t) * v->ne[1] + head) * v->ne[0];
}

/* Few tokens of a sequence for some rows of one head's state, a block that stays in the first cache. */
static void step_block(const struct tensor *dst, const struct part *part, int64_t head, int64_t row, int64_t rows,
                       const float *before, float *stored)
{
    _Alignas(64) float spare[RULE_UNIT * MAX_TURNED]; /* the state between tokens */
    struct decayed room;
    const int64_t features = dst->src[2]->ne[0];
    float *const between = features <= MAX_TURNED ? spare : stored;
    for (int64_t t = 0; t < part->tokens; t++) {
        const int64_t at = token_place(part, t);
        const struct token token = token_at(dst, at, head, part->outer, &room);
        const float *value = element_at(dst->src[2], row, head, at, part->outer);
        float *out = output_at(dst, at, head, part->outer) + row;
        const struct after after = after_token(part, t, between, stored);
        for (int64_t r = 0; r < rows; r += RULE_ROWS)
            step_rows(before, &after, r * features, features, &token, value + r, out + r);
        before = between;
    }
}

/* The same for many tokens. */
INLINE void step_turned_block(const struct tensor *dst, int64_t sequence, int64_t head, int64_t row, int vectors,
                              const float *before, float *after)
{
    _Alignas(64) float block[MAX_TURNED * TURNED_VECTORS * 16], total[MAX_TURNED];
    struct decayed room;
    const int64_t features = dst->src[2]->ne[0], tokens = dst->src[2]->ne[2], rows = vectors * 16;
    for (int64_t i = 0; i < features; i++) {
        total[i] = 1.0f;
        for (int64_t r = 0; r < rows; r++)
            block[i * rows + r] = before[r * features + i];
    }
    float decay = 1.0f;
    for (int64_t t = 0; t < tokens; t++) {
        struct token token = decays_each(dst)
                                 ? turned_token(dst, t, head, sequence, &room, total, block, rows)
                                 : token_at(dst, t, head, sequence, &room);
        const float *value = element_at(dst->src[2], row, head, t, sequence);
        decay *= token.decay;
        if (!(decay >= LEAST_DECAY)) {
            scale_block(block, features * rows, decay);
            decay = 1.0f;
        }
        token.decay = decay;
        step_turned(block, features, vectors, &token, value, output_at(dst, t, head, sequence) + row);
    }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < features; i++)
            after[r * features + i] = block[i * rows + r] * decay * total[i];
}

/* dst: F32, the outputs (sequences, tokens, heads, features); src: queries and keys (sequences, tokens, key heads,
 * features), values (sequences, tokens, heads, features), logarithms of decays (sequences, tokens, heads), or of
 * those of each feature of the keys (sequences, tokens, heads, features), betas (sequences, tokens, heads), states
 * (cells, heads features features), and for each sequence the cell that it reads, and the one that it writes, or parts.
 * No sequence writes what another reads. Features are a multiple of 16, and with parts at most MAX_TURNED. Rows of a
 * state do not depend on one another. The parameters:
 * whether tokens are computed one by one, so that it makes no difference how many there are; whether each feature
 * has a decay, which takes at most MAX_TURNED features; whether there are parts. */
static void delta_rule(struct tensor *dst, int thread, int threads, void *user)
{
    const struct tensor *v = dst->src[2], *states = dst->src[5];
    const struct tensor *parts = dst->op_params[OWN_PARAMS + 2] ? dst->src[7] : NULL;
    const int64_t features = v->ne[0], heads = v->ne[1], sequences = parts ? parts->ne[1] : v->ne[3];
    const int is_one_by_one = dst->op_params[OWN_PARAMS] || parts;
    const int is_turned = !is_one_by_one && v->ne[2] >= TURNED_TOKENS && features <= MAX_TURNED;
    const int64_t most = is_turned ? TURNED_VECTORS * 16 : RULE_UNIT, unit = features < most ? features : most;
    const int64_t units = (features + unit - 1) / unit;
    (void)user;
    if (parts)
        clear_unused(parts, dst->data, features * heads, thread, threads);
    for (int64_t at = thread; at < sequences * heads * units; at += threads) {
        const int64_t row = at % units * unit, head = at / units % heads, sequence = at / units / heads;
        const int64_t rows = features - row < unit ? features - row : unit, place = (head * features + row) * features;
        const struct part part = part_at(parts, sequence, v->ne[2]);
        const float *before = row_at(states, dst->src[6], sequence) + place;
        float *after = row_after(states, dst->src[7], parts != NULL, sequence) + place;
        if (is_turned && rows == TURNED_VECTORS * 16)
            step_turned_block(dst, sequence, head, row, TURNED_VECTORS, before, after);
        else if (is_turned)
            for (int64_t r = 0; r < rows; r += 16)
                step_turned_block(dst, sequence, head, row + r, 1, before + r * features, after + r * features);
        else
            step_block(dst, &part, head, row, rows, before, after);
    }
    vf_stream_end();
}

/* Some channels of a sequence; `before` and `kernel` have a row of CONVOLVED for each place of the window. */
static void convolve_channels(const struct tensor *dst, const struct part *part, const float *bias, int64_t first,
                              int64_t count, float before[][CONVOLVED], float kernel[][CONVOLVED], int has_silu)
{
    const struct tensor *x = dst->src[0];
    const int64_t channels = x->ne[0], width = dst->src[2]->ne[0];
    for (int64_t t = 0; t < part->tokens; t++) {
        const float *rows[MAX_WIDTH];
        float *out = (float *)dst->data + (part->outer * x->ne[1] + token_place(part, t)) * channels + first;
        for (int64_t i = 0; i < width; i++) {
            const int64_t from = t - (width - 1) + i;
            rows[i] = from < 0 ? before[from + width - 1]
                               : element_at(x, first, token_place(part, from), part->outer, 0);
        }
        for (int64_t c = 0; c < count; c += 16) {
            vf y = bias ? vf_load(bias + c) : vf_zero();
            for (int64_t i = 0; i < width; i++)
                y = vf_fma(vf_load(rows[i] + c), vf_load(kernel[i] + c), y);
            if (has_silu) {
                const vf e = vf_exp(vf_sub(vf_zero(), y));
                y = vf_div(y, vf_add(vf_splat(1.0f), e));
            }
            vf_store(out + c, y);
        }
    }
}

/* dst: F32, the outputs (sequences, tokens, channels); src: inputs of that shape, states (cells, channels (width -
 * 1)), the last inputs before, kernels (channels, width), and for each sequence the cell that it reads, and the one
 * that it writes, or parts; then biases (channels), or nothing. The parameters: whether SiLU follows; whether there
 * are parts. Channels are a multiple of 16, widths at most 8. */
static void convolution(struct tensor *dst, int thread, int threads, void *user)
{
    float before[MAX_WIDTH][CONVOLVED], kernel[MAX_WIDTH][CONVOLVED];
    const struct tensor *x = dst->src[0], *states = dst->src[1], *biases = dst->src[5];
    const struct tensor *parts = dst->op_params[OWN_PARAMS + 1] ? dst->src[4] : NULL;
    const int64_t channels = x->ne[0], sequences = parts ? parts->ne[1] : x->ne[2], width = dst->src[2]->ne[0];
    const int64_t blocks = (channels + CONVOLVED - 1) / CONVOLVED, history = width - 1;
    const float *kernels = dst->src[2]->data;
    (void)user;
    if (parts)
        clear_unused(parts, dst->data, channels, thread, threads);
    for (int64_t at = thread; at < sequences * blocks; at += threads) {
        const int64_t first = at % blocks * CONVOLVED, sequence = at / blocks;
        const int64_t count = channels - first < CONVOLVED ? channels - first : CONVOLVED;
        const struct part part = part_at(parts, sequence, x->ne[1]);
        const float *past = row_at(states, dst->src[3], sequence) + first * history;
        float *last = row_after(states, dst->src[4], parts != NULL, sequence) + first * history;
        for (int64_t c = 0; c < count; c++) {
            for (int64_t i = 0; i < width; i++)
                kernel[i][c] = kernels[(first + c) * width + i];
            for (int64_t i = 0; i < history; i++)
                before[i][c] = past[c * history + i];
            for (int64_t i = 0; part.stored && i < history; i++) {
                const int64_t from = part.stored - history + i;
                last[c * history + i] = from < 0 ? past[c * history + part.stored + i]
                                                 : *element_at(x, first + c, token_place(&part, from), part.outer, 0);
            }
        }
        convolve_channels(dst, &part, biases ? (const float *)biases->data + first : NULL, first, count, before,
                          kernel, dst->op_params[OWN_PARAMS]);
    }
}
