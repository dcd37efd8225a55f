/* Runs every kernel on exactly as much memory as it may touch, and compares what it gives with what the
 * portable level gives; prints each level with how many runs there were. With an argument: few sizes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels.h"

enum { FIXED = 257 }; /* F16 as integers */
static const int TYPES[] = {1, 2, 3, 6, 8, 12, 13, 14, 20, 30, 39, FIXED};
static const int BLOCK_BYTES[] = {64, 18, 20, 22, 34, 144, 176, 210, 18, 64, 17, 64};
static int runs;

/* Memory that ends at a page that nobody may touch; given back in order, all at once. */
static struct { void *base; size_t size; } taken[16];
static int held;

static void *guarded(size_t size)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (size + page - 1) / page * page;
    char *base = mmap(NULL, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED || mprotect(base + whole, page, PROT_NONE) != 0)
        abort();
    taken[held].base = base, taken[held++].size = whole + page;
    return base + whole - size;
}

static void give_back(void)
{
    while (held)
        held--, munmap(taken[held].base, taken[held].size);
}

static struct tensor *matrix(struct tensor *t, void *data, int64_t columns, int64_t rows)
{
    memset(t, 0, sizeof *t);
    t->ne[0] = columns, t->ne[1] = rows, t->ne[2] = t->ne[3] = 1;
    t->nb[0] = 4, t->nb[1] = 4 * columns, t->nb[2] = t->nb[3] = 4 * columns * rows;
    t->data = data;
    return t;
}

/* Of bytes like these every half is finite. */
static unsigned char some_byte(size_t index)
{
    return (unsigned char)(index * 2654435761u >> 11) & 0x3b;
}

static void *filled(size_t size)
{
    unsigned char *bytes = guarded(size);
    for (size_t i = 0; i < size; i++)
        bytes[i] = some_byte(i);
    return bytes;
}

static void operate(int level, const char *name, struct tensor *dst, int threads)
{
    for (int t = 0; t < threads; t++)
        ((operation *)tampu_level_operation(level, name))(dst, t, threads, NULL);
}

/* What two operations, one for the other (or one alone), give on a level and on the portable one, which is
 * the last: the results must agree. Where tiles multiply, weights and activations are rounded to BF16; the
 * real ones must agree with those in plain C, the level before the last. */
static void compare(int level, const char *pack, const char *name, struct tensor *activations,
                    struct tensor *out, int count, int threads)
{
    float *found = guarded(sizeof(float) * (size_t)count), largest = 0;
    const float *expected = out->data;
    const int is_amx = strcmp(tampu_level_name(level), "amx") == 0;
    const int portable = tampu_level_count() - (is_amx ? 2 : 1);
    const float tolerance = level == tampu_level_count() - 2 ? 1e-2f : 1e-4f;
    for (int at = level;; at = portable) {
        if (activations)
            operate(at, pack, activations, threads);
        operate(at, name, out, threads);
        if (at == level)
            memcpy(found, out->data, sizeof(float) * (size_t)count);
        if (at == portable)
            break;
    }
    for (int i = 0; i < count; i++)
        largest = fmaxf(largest, fabsf(expected[i]));
    for (int i = 0; i < count; i++)
        if (!(fabsf(found[i] - expected[i]) <= tolerance * largest)) {
            fprintf(stderr, "%s, %s of type %d: %g, not %g\n", tampu_level_name(level), name,
                    out->src[1]->type ? out->src[1]->type : out->op_params[OWN_PARAMS], found[i],
                    expected[i]);
            exit(1);
        }
    give_back();
    runs++;
}

/* Hint, bytes ahead, strips at once, bytes of a chunk: what tiles do must not depend on them. */
static void fetch_somehow(int32_t *params, int number)
{
    static const int32_t streams[] = {0, 1, 3, 8, 16};
    params[0] = number % 5;
    params[1] = 512 << number % 4;
    params[2] = streams[number % 5];
    params[3] = number % 2 * 65536;
}

static void run(int level, int index, int rows, int inputs, int tokens, int threads)
{
    int type = TYPES[index], is_float = type == 1 || type == 30 || type == FIXED;
    int block = type == 12 || type == 13 || type == 14 ? 256 : 32;
    size_t stored_bytes = (size_t)rows * (size_t)(inputs / block) * (size_t)BLOCK_BYTES[index];
    unsigned char *stored = filled(stored_bytes);
    for (size_t i = 1; type == FIXED && tokens % 2 && i < stored_bytes; i += 2)
        stored[i] |= 0x30; /* numbers of one size: integers; else they stay halves */
    int64_t size = tampu_packed_bytes(type, 1, rows, inputs);
    void *packed = guarded((size_t)size);
    tampu_level_pack(tampu_level_count() - 1, type, stored, packed, rows, inputs, 0, (rows + 15) / 16);
    float *x = guarded(sizeof(float) * (size_t)(tokens * inputs));
    for (int i = 0; i < tokens * inputs; i++) /* of one token large and small ones, of the next not */
        x[i] = (float)(i % 17 - 8) * (i / inputs % 2 && i % 3 ? 1e-4f : 1.0f);
    struct tensor given, activations, weights, out;
    matrix(&given, x, inputs, tokens);
    matrix(&weights, packed, size, 1);
    size_t bytes = (size_t)tampu_level_activation_bytes(level, type, 1, tokens, inputs);
    matrix(&activations, guarded(bytes), (int64_t)bytes, 1)->src[0] = &given;
    matrix(&out, guarded(sizeof(float) * (size_t)(rows * tokens)), rows, tokens);
    out.src[0] = &weights, out.src[1] = &activations;
    out.op_params[OWN_PARAMS] = type;
    activations.op_params[OWN_PARAMS] = type;
    fetch_somehow(out.op_params + OWN_PARAMS + 2, rows + tokens);
    const char *name = is_float ? "interleave" : "quantize";
    compare(level, name, "product", &activations, &out, rows * tokens, threads);
}

/* The same for three experts, of which tokens use two, never the second: it is not even there. */
static void run_experts(int level, int index, int rows, int inputs, int tokens, int threads)
{
    int type = TYPES[index], used = 2, shared = tokens % 2;
    int64_t size = tampu_packed_bytes(type, 3, rows, inputs), each = size / 3;
    uint8_t *packed = guarded((size_t)size);
    int32_t *chosen = guarded(sizeof *chosen * (size_t)(tokens * used));
    int entries = tokens * inputs * (shared ? 1 : used);
    float *x = guarded(sizeof *x * (size_t)entries);
    for (int64_t i = 0; i < size; i++)
        packed[i] = i / each == 1 ? 0xff : some_byte((size_t)i);
    for (int i = 0; i < entries; i++)
        x[i] = (float)(i % 17 - 8);
    for (int i = 0; i < tokens * used; i++)
        chosen[i] = i % 3 ? 0 : 2;
    struct tensor given, choice, activations, weights, out;
    matrix(&given, x, inputs, shared ? 1 : used);
    matrix(&out, guarded(sizeof(float) * (size_t)(rows * tokens * used)), rows, used);
    given.ne[2] = out.ne[2] = tokens;
    matrix(&choice, chosen, used, tokens);
    matrix(&weights, packed, size, 1);
    size_t bytes = (size_t)(tampu_level_activation_bytes(level, type, 3, tokens * used, inputs)
                            + tampu_plan_bytes(3, tokens * used));
    matrix(&activations, guarded(bytes), (int64_t)bytes, 1)->src[0] = &given;
    activations.src[1] = &choice;
    out.src[0] = &weights, out.src[1] = &activations;
    activations.op_params[OWN_PARAMS] = out.op_params[OWN_PARAMS] = type;
    activations.op_params[OWN_PARAMS + 1] = out.op_params[OWN_PARAMS + 1] = 3;
    fetch_somehow(out.op_params + OWN_PARAMS + 3, rows + tokens);
    compare(level, "group", "product_each", &activations, &out, rows * tokens * used, threads);
}

/* Small whole numbers as the floats of a type, in rows of blocks as caches have them. */
static void *cached(int type, int64_t count)
{
    const size_t size = (size_t)(type == 8 ? count / 32 * 34 : type == 1 ? 2 * count : 4 * count);
    uint8_t *bytes = guarded(size);
    for (int64_t i = 0; i < count; i++) {
        const int number = (int)(i * 7 % 31 % 13) - 6;
        const float value = (float)number / 4;
        const uint16_t halves[] = {0x0000, 0x3400, 0x3800, 0x3a00, 0x3c00, 0x3d00, 0x3e00};
        const uint16_t half = (uint16_t)(halves[abs(number)] | (number < 0 ? 0x8000 : 0));
        if (type == 8) {
            uint8_t *block = bytes + i / 32 * 34;
            memcpy(block, &halves[1], 2);
            block[2 + i % 32] = (uint8_t)number;
        } else if (type == 1) {
            memcpy(bytes + 2 * i, &half, 2);
        } else {
            memcpy(bytes + 4 * i, &value, 4);
        }
    }
    return bytes;
}

/* Several sequences: a token sees every third cell, the first one none, the last one all. */
static struct tensor *mask_of(struct tensor *t, int64_t history, int tokens)
{
    uint16_t *cells = guarded(2 * (size_t)(history * tokens));
    for (int token = 0; token < tokens; token++)
        for (int64_t cell = 0; cell < history; cell++) {
            const int is_visible = token + 1 == tokens || (token && cell % 3 == token % 3);
            cells[token * history + cell] = is_visible ? 0 : 0xfc00;
        }
    matrix(t, cells, history, tokens);
    t->nb[1] = 2 * (size_t)history;
    return t;
}

/* Heads whose features do not fill a vector too: nothing behind a row's last one may be touched. */
static void attend(int level, int type, int features, int tokens, int history, int variant, int threads)
{
    const int heads = 4, kv_heads = 2;
    struct { float scale, cap, max_bias; int32_t has_mask, has_sinks, has_cells; } params = {
        0.125f, variant & 1 ? 2.0f : 0.0f, variant & 8 ? 8.0f : 0.0f, (variant & 2) != 0, (variant & 4) != 0, 0};
    struct tensor q, k, v, mask, sinks, out;
    matrix(&q, cached(0, (int64_t)heads * tokens * features), features, tokens);
    matrix(&k, cached(type, (int64_t)kv_heads * history * features), features, history);
    matrix(&v, cached(type, (int64_t)kv_heads * history * features), features, history);
    k.type = v.type = type;
    k.nb[1] = (size_t)(type == 8 ? features / 32 * 34 : type == 1 ? 2 * features : 4 * features);
    k.nb[2] = k.nb[1] * (size_t)history;
    memcpy(v.nb, k.nb, sizeof v.nb);
    q.ne[2] = heads, k.ne[2] = v.ne[2] = kv_heads;
    matrix(&out, guarded(sizeof(float) * (size_t)(heads * tokens * features)), features, heads);
    out.ne[2] = tokens;
    struct tensor **source = out.src;
    *source++ = &q, *source++ = &k, *source++ = &v;
    if (params.has_mask)
        *source++ = mask_of(&mask, history, tokens);
    if (params.has_sinks)
        *source++ = matrix(&sinks, cached(0, heads), heads, 1);
    memcpy(out.op_params + OWN_PARAMS, &params, sizeof params);
    compare(level, NULL, "attention", NULL, &out, heads * tokens * features, threads);
}

/* A tensor of small numbers, of four lengths, fastest first. */
static struct tensor *small(struct tensor *t, int64_t a, int64_t b, int64_t c, int64_t d)
{
    matrix(t, cached(0, a * b * c * d), a, b);
    t->ne[2] = c, t->ne[3] = d;
    t->nb[2] = 4 * (size_t)(a * b), t->nb[3] = 4 * (size_t)(a * b * c);
    return t;
}

enum { PARTS = 3, PART_TOKENS = 10 };

/* States behind the outputs, compared with them. Each sequence reads one row and writes one of those after. */
struct kept {
    struct tensor states, read, written;
};

static int keep_states(struct kept *kept, struct tensor *out, int at, int outputs, int row, int sequences)
{
    const int rows = 2 * sequences + 1, count = outputs + rows * row;
    float *data = guarded(sizeof *data * (size_t)count), *given = cached(0, (int64_t)rows * row);
    int32_t *read = guarded(sizeof *read * (size_t)sequences);
    int64_t *written = guarded(sizeof *written * (size_t)sequences);
    for (int s = 0; s < sequences; s++)
        read[s] = sequences - s, written[s] = sequences + 1 + s;
    memcpy(data + outputs, given, sizeof *data * (size_t)(rows * row));
    matrix(out, data, outputs, 1);
    matrix(&kept->states, data + outputs, row, rows);
    out->src[at] = matrix(&kept->read, read, sequences, 1);
    out->src[at + 1] = matrix(&kept->written, written, sequences, 1);
    kept->written.nb[0] = 8;
    return count;
}

static void step_states(int level, int features, int tokens, int heads, int decays_each, int threads)
{
    const int key_heads = heads % 2 ? 1 : heads / 2, sequences = 1 + tokens % 2;
    const int outputs = sequences * heads * features * tokens;
    struct tensor q, k, v, decay, beta, out;
    struct kept kept;
    const int count = keep_states(&kept, &out, 6, outputs, heads * features * features, sequences);
    out.src[0] = small(&q, features, key_heads, tokens, sequences);
    out.src[1] = small(&k, features, key_heads, tokens, sequences);
    for (int i = 0; i < sequences * tokens * key_heads * features; i++)
        ((float *)k.data)[i] /= 16; /* lengths of about 1, else states would grow */
    out.src[2] = small(&v, features, heads, tokens, sequences);
    const int each = decays_each ? features : 1;
    out.src[3] = decays_each ? small(&decay, features, heads, tokens, sequences)
                             : small(&decay, heads, tokens, sequences, 1);
    out.src[4] = small(&beta, heads, tokens, sequences, 1);
    out.op_params[OWN_PARAMS + 1] = decays_each;
    for (int i = 0; i < sequences * tokens * heads; i++)
        ((float *)beta.data)[i] = 0.5f;
    for (int i = 0; i < sequences * tokens * heads * each; i++)
        ((float *)decay.data)[i] = -fabsf(((float *)decay.data)[i]);
    out.src[5] = &kept.states;
    compare(level, NULL, "delta_rule", NULL, &out, count, threads);
}

static void convolve(int level, int channels, int tokens, int width, int threads)
{
    const int sequences = 1 + channels % 3, outputs = sequences * channels * tokens;
    struct tensor x, kernel, out;
    struct kept kept;
    const int count = keep_states(&kept, &out, 3, outputs, channels * (width - 1), sequences);
    out.src[0] = small(&x, channels, tokens, sequences, 1);
    out.src[1] = &kept.states;
    out.src[2] = small(&kernel, width, channels, 1, 1);
    out.op_params[OWN_PARAMS] = tokens % 2;
    compare(level, NULL, "convolution", NULL, &out, count, threads);
}

/* Three sequences, of which two have tokens to replay and two have drafts; a place for replayed ones is not used. */
static struct tensor *parts_of(struct tensor *parts)
{
    static const int32_t NUMBERS[PARTS][6] = {{0, 0, 4, 1, 1, 4}, {0, 2, 5, 1, 3, 5}, {2, 1, 8, 0, 2, 6}};
    int32_t *given = guarded(sizeof NUMBERS);
    memcpy(given, NUMBERS, sizeof NUMBERS);
    return matrix(parts, given, 6, PARTS);
}

static void step_parts(int level, int features, int heads, int decays_each, int threads)
{
    const int outputs = heads * features * PART_TOKENS;
    struct tensor q, k, v, decay, beta, out, parts;
    struct kept kept;
    const int count = keep_states(&kept, &out, 6, outputs, heads * features * features, PARTS);
    out.src[0] = small(&q, features, 1, PART_TOKENS, 1);
    out.src[1] = small(&k, features, 1, PART_TOKENS, 1);
    for (int i = 0; i < PART_TOKENS * features; i++)
        ((float *)k.data)[i] /= 16;
    out.src[2] = small(&v, features, heads, PART_TOKENS, 1);
    const int decays = PART_TOKENS * heads * (decays_each ? features : 1);
    out.src[3] = decays_each ? small(&decay, features, heads, PART_TOKENS, 1) : small(&decay, heads, PART_TOKENS, 1, 1);
    out.src[4] = small(&beta, heads, PART_TOKENS, 1, 1);
    out.op_params[OWN_PARAMS + 1] = decays_each, out.op_params[OWN_PARAMS + 2] = 1;
    for (int i = 0; i < PART_TOKENS * heads; i++)
        ((float *)beta.data)[i] = 0.5f;
    for (int i = 0; i < decays; i++)
        ((float *)decay.data)[i] = -fabsf(((float *)decay.data)[i]);
    out.src[5] = &kept.states;
    out.src[7] = parts_of(&parts);
    compare(level, NULL, "delta_rule", NULL, &out, count, threads);
}

static void convolve_parts(int level, int channels, int width, int threads)
{
    struct tensor x, kernel, bias, out, parts;
    struct kept kept;
    const int count = keep_states(&kept, &out, 3, channels * PART_TOKENS, channels * (width - 1), PARTS);
    out.src[0] = small(&x, channels, PART_TOKENS, 1, 1);
    out.src[1] = &kept.states;
    out.src[2] = small(&kernel, width, channels, 1, 1);
    out.src[4] = parts_of(&parts);
    if (width % 2)
        out.src[5] = small(&bias, channels, 1, 1, 1);
    out.op_params[OWN_PARAMS + 1] = 1;
    compare(level, NULL, "convolution", NULL, &out, count, threads);
}

static void scan_parts(int level, int features, int size, int threads)
{
    struct tensor x, b, c, step, decay, skip, out, parts;
    struct kept kept;
    const int count = keep_states(&kept, &out, 7, 2 * features * PART_TOKENS, 2 * features * size, PARTS);
    out.src[0] = small(&x, features, 2, PART_TOKENS, 1);
    out.src[1] = small(&b, size, 1, PART_TOKENS, 1);
    out.src[2] = small(&c, size, 1, PART_TOKENS, 1);
    out.src[3] = small(&step, 2, PART_TOKENS, 1, 1);
    out.src[4] = small(&decay, 1, 2, 1, 1);
    out.src[5] = small(&skip, 1, 2, 1, 1);
    for (int i = 0; i < 2; i++)
        ((float *)decay.data)[i] = -fabsf(((float *)decay.data)[i]);
    out.src[6] = &kept.states;
    out.src[8] = parts_of(&parts), out.op_params[OWN_PARAMS + 1] = 1;
    compare(level, NULL, "selective_scan", NULL, &out, count, threads);
}

static void add_experts(int level, int features, int used, int tokens, int threads)
{
    struct tensor rows, weights, out;
    matrix(&out, guarded(sizeof(float) * (size_t)(features * tokens)), features, tokens);
    out.src[0] = small(&rows, features, used, tokens, 1);
    out.src[1] = small(&weights, 1, used, tokens, 1);
    compare(level, NULL, "weighted_total", NULL, &out, features * tokens, threads);
}

/* Whether a level has kernels for a layout; those in plain C have them for all. */
static int can(int level, int type)
{
    return type != FIXED || level >= tampu_level_count() - 2 || tampu_level_layout(level, 1, 64) == FIXED;
}

static void run_level(int level, int is_brief)
{
    const int types = (int)(sizeof TYPES / sizeof *TYPES);
    for (int features = 4; features <= 256; features += features < 80 && !is_brief ? 4 : 44) {
        const int tokens = 1 + features / 4 % 7, history = features % 3 ? 65 : 31;
        for (int type = 0; type < 2; type++)
            attend(level, type, features, tokens, history, features / 4 % 16, 1 + features % 3);
    }
    for (int type = 0; type < 2; type++)
        for (int features = 260; features <= 512; features += is_brief ? 252 : 84)
            attend(level, type, features, 1 + 40 * type, 70, 3, 2);
    for (int features = 32; features <= 256; features += is_brief ? 224 : 32)
        attend(level, 8, features, 1 + features % 5, 70, features / 32 % 8, 2);
    for (int features = 16; features <= 128; features += is_brief ? 112 : 16)
        for (int many = 0; many < 2; many++)
            for (int each = 0; each < 2; each++)
                step_states(level, features, 1 + 17 * many + features % 5, 1 + features / 16 % 4, each,
                            1 + features % 3);
    for (int channels = 16; channels <= 544; channels += is_brief ? 256 : 48)
        convolve(level, channels, 1 + channels % 7, 2 + channels / 16 % 7, 1 + channels % 3);
    for (int features = 16; features <= 256; features += is_brief ? 112 : 48) {
        for (int each = 0; each < 2; each++)
            step_parts(level, features, 1 + features / 16 % 3, each, 1 + features % 3);
        convolve_parts(level, features, 2 + features / 16 % 7, 1 + features % 3);
        scan_parts(level, 16 + features % 48, features, 1 + features % 3);
    }
    for (int features = 1; features <= 600; features += is_brief ? 180 : 15)
        add_experts(level, features, 1 + features % 9, 1 + features % 4, 1 + features % 3);
    for (int index = 0; index < types; index++)
        for (int tokens = can(level, TYPES[index]) ? 1 : 28; tokens < 28; tokens += is_brief ? 13 : tokens < 14 ? 1 : 6)
            for (int rows = 1; rows < (is_brief ? 17 : 40); rows += 15) {
                run(level, index, rows, tokens % 2 ? 256 : 512, tokens, 1 + tokens % 3);
                run_experts(level, index, rows, 256, tokens, 1 + tokens % 3);
            }
}

int main(int count, char **arguments)
{
    (void)arguments;
    for (int level = 0; level < tampu_level_count(); level++) {
        runs = 0;
        run_level(level, count > 1);
        printf("%s %d\n", tampu_level_name(level), runs);
    }
    return 0;
}
