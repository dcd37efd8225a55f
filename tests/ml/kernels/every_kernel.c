/* Runs every kernel on exactly as much memory as it may touch, and compares what it gives with what the
 * portable level gives; prints how many runs there were. */
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
static struct { void *base; size_t size; } taken[8];
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

/* Compute on a level and on the portable one, which is the last; they must agree. */
static void compare(int level, const char *pack, const char *multiply, struct tensor *activations,
                    struct tensor *out, int count, int threads)
{
    float *found = guarded(sizeof(float) * (size_t)count), largest = 0;
    const float *expected = out->data;
    operate(level, pack, activations, threads);
    operate(level, multiply, out, threads);
    memcpy(found, out->data, sizeof(float) * (size_t)count);
    if (level < tampu_level_count() - 1) {
        operate(tampu_level_count() - 1, pack, activations, threads);
        operate(tampu_level_count() - 1, multiply, out, threads);
    }
    for (int i = 0; i < count; i++)
        largest = fmaxf(largest, fabsf(expected[i]));
    for (int i = 0; i < count; i++)
        if (!(fabsf(found[i] - expected[i]) <= 1e-4f * largest)) {
            fprintf(stderr, "%s, %s of type %d: %g, not %g\n", tampu_level_name(level), multiply,
                    out->op_params[OWN_PARAMS], found[i], expected[i]);
            exit(1);
        }
    give_back();
    runs++;
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
    size_t bytes = (size_t)tampu_activation_bytes(type, tokens, inputs);
    matrix(&activations, guarded(bytes), (int64_t)bytes, 1)->src[0] = &given;
    matrix(&out, guarded(sizeof(float) * (size_t)(rows * tokens)), rows, tokens);
    out.src[0] = &weights, out.src[1] = &activations;
    out.op_params[OWN_PARAMS] = type;
    activations.op_params[OWN_PARAMS] = type;
    const char *name = is_float ? "interleave" : "quantise";
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
    size_t bytes = (size_t)(tampu_activation_bytes(type, tokens * used, inputs)
                            + tampu_plan_bytes(3, tokens * used));
    matrix(&activations, guarded(bytes), (int64_t)bytes, 1)->src[0] = &given;
    activations.src[1] = &choice;
    out.src[0] = &weights, out.src[1] = &activations;
    activations.op_params[OWN_PARAMS] = out.op_params[OWN_PARAMS] = type;
    activations.op_params[OWN_PARAMS + 1] = out.op_params[OWN_PARAMS + 1] = 3;
    compare(level, "group", "product_each", &activations, &out, rows * tokens * used, threads);
}

/* Heads whose features do not fill a vector: nothing behind a row's last one may be touched. */
static void attend(int level, int type, int features, int tokens, int history, int threads)
{
    const int heads = 4, kv_heads = 2, bytes = type == 1 ? 2 : 4;
    struct { float scale, cap; int32_t has_mask, has_sinks; } params = {0.125f, 0.0f, 0, 0};
    struct tensor q, k, v, out;
    matrix(&q, filled(sizeof(float) * (size_t)(heads * tokens * features)), features, tokens);
    matrix(&k, filled((size_t)(bytes * kv_heads * history * features)), features, history);
    matrix(&v, filled((size_t)(bytes * kv_heads * history * features)), features, history);
    k.type = v.type = type;
    for (int i = 0; i < 3; i++)
        k.nb[i] = v.nb[i] = k.nb[i] / 4 * (size_t)bytes;
    q.ne[2] = heads, k.ne[2] = v.ne[2] = kv_heads;
    matrix(&out, guarded(sizeof(float) * (size_t)(heads * tokens * features)), features, heads);
    out.ne[2] = tokens;
    out.src[0] = &q, out.src[1] = &k, out.src[2] = &v;
    memcpy(out.op_params + OWN_PARAMS, &params, sizeof params);
    for (int t = 0; t < threads; t++)
        ((operation *)tampu_level_operation(level, "attention"))(&out, t, threads, NULL);
    give_back();
    runs++;
}

/* Whether a level has kernels for a layout; the portable one has them for all. */
static int can(int level, int type)
{
    return type != FIXED || level == tampu_level_count() - 1 || tampu_level_layout(level, 1, 64) == FIXED;
}

int main(void)
{
    for (int level = 0; level < tampu_level_count(); level++)
        for (int type = 0; type < 2; type++)
            for (int features = 4; features < 100; features += 4)
                attend(level, type, features, 1 + features % 7, features % 3 ? 65 : 31, 1 + features % 3);
    for (int level = 0; level < tampu_level_count(); level++)
        for (int index = 0; index < (int)(sizeof TYPES / sizeof *TYPES); index++)
            for (int tokens = can(level, TYPES[index]) ? 1 : 28; tokens < 28; tokens += tokens < 14 ? 1 : 6)
                for (int rows = 1; rows < 40; rows += 15) {
                    run(level, index, rows, tokens % 2 ? 256 : 512, tokens, 1 + tokens % 3);
                    run_experts(level, index, rows, 256, tokens, 1 + tokens % 3);
                }
    printf("%d\n", runs);
    return 0;
}
