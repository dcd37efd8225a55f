/* How attention is divided into tasks. */

/* Rows of a task: the more they are, the less often keys and values are read. */
static int64_t rows_of_task(const struct attention *a, int threads)
{
    const int64_t features = a->features > a->value_features ? a->features : a->value_features;
    const int64_t most = BLOCK_ROWS * features <= MAX_WIDE ? BLOCK_ROWS : MAX_WIDE / MAX_FEATURES;
    int64_t rows = MIN_ROWS;
    while (rows < most && a->heads * a->tokens / (2 * rows) >= (int64_t)MIN_TASKS * threads)
        rows *= 2;
    return rows;
}

/* How the work is divided: how many query heads of a group, tokens and key-value heads a task has. A
 * group is divided if there were fewer tasks than threads otherwise; with few tokens a task has several
 * key-value heads, since their keys are neighbours in memory. */
struct division {
    int64_t parts, heads, block, blocks, kv_each, kv_ranges;
};

static struct division divide(const struct attention *a, int threads)
{
    const int64_t group = a->heads / a->kv_heads, rows = rows_of_task(a, threads);
    struct division d = {.parts = (group + rows - 1) / rows};
    while (a->kv_heads * d.parts * a->tokens < threads && d.parts < group)
        d.parts++;
    d.heads = (group + d.parts - 1) / d.parts;
    d.block = rows / d.heads;
    d.blocks = (a->tokens + d.block - 1) / d.block;
    const int64_t fitting = rows / (d.heads * (a->tokens < d.block ? a->tokens : d.block));
    const int64_t fair = (a->kv_heads * d.parts * d.blocks + threads - 1) / threads;
    d.kv_each = fitting < fair ? fitting : fair;
    d.kv_each = d.kv_each < a->kv_heads ? d.kv_each : a->kv_heads;
    d.kv_each = a->by_tiles ? 1 : d.kv_each;
    d.kv_ranges = (a->kv_heads + d.kv_each - 1) / d.kv_each;
    return d;
}
