/* Keys and values as attention reads them: a tile of cells of one head at a time, as floats. */

/* Where a head's rows of a tile are; what is missing from a whole tile counts as zeros. */
struct rows {
    const uint8_t *at;
    size_t row; /* bytes between neighbours */
    int64_t count;
    int type;
};

INLINE const uint8_t *row_of_cell(const struct tensor *from, int64_t head, int64_t cell)
{
    return (const uint8_t *)from->data + head * from->nb[2] + cell * from->nb[1];
}

/* Cells of a tile that are neighbours: the first, and how many; first < 0: they are not. */
struct run {
    int64_t first, count;
};

/* Of the cells at a tile's positions, of which negative ones are not there. */
static struct run find_run(const int32_t *tile, int64_t positions)
{
    struct run run = {tile[0], positions};
    while (run.count > 0 && tile[run.count - 1] < 0)
        run.count--;
    for (int64_t i = 0; i < run.count; i++)
        if (tile[i] != run.first + i)
            run.first = -1;
    return run;
}

/* A head's rows at a tile's positions: in place if they are neighbours there, else copied. */
static struct rows gather_rows(const struct tensor *from, int64_t head, const int32_t *tile, int64_t positions,
                               uint8_t *copy)
{
    const size_t features = (size_t)from->ne[0];
    const size_t bytes = from->type == TYPE_Q8_0 ? features / BLOCK * 34 : features * (from->type == TYPE_F16 ? 2 : 4);
    const struct run run = find_run(tile, positions);
    if (run.first >= 0)
        return (struct rows){row_of_cell(from, head, run.first), from->nb[1], run.count, from->type};
    for (int64_t i = 0; i < run.count; i++)
        if (tile[i] < 0)
            memset(copy + i * bytes, 0, bytes);
        else
            memcpy(copy + i * bytes, row_of_cell(from, head, tile[i]), bytes);
    return (struct rows){copy, bytes, run.count, from->type};
}

/* Memory to ask for while something else is computed: some bytes of each row, in the order of memory,
 * since to read one head after the other is several times slower; and a little at a time, since a
 * CPU waits when it is asked for much at a time. */
struct ahead {
    const uint8_t *at, *row_end, *end;
    size_t bytes, row;
};

static struct ahead ahead_of(const struct tensor *from, int64_t head, int64_t heads, int64_t first,
                             int64_t last)
{
    const uint8_t *at = (const uint8_t *)from->data + head * from->nb[2];
    struct ahead ahead = {.bytes = (size_t)heads * from->nb[2], .row = from->nb[1]};
    if (ahead.bytes <= ahead.row && first < last) { /* else the heads' rows are not neighbours */
        ahead.at = at + first * from->nb[1];
        ahead.row_end = ahead.at + ahead.bytes;
        ahead.end = at + last * from->nb[1];
    }
    return ahead;
}

/* Ask for two lines of 64 bytes: of halves, a tile has twice as many lines as features or cells. */
INLINE void fetch_two(struct ahead *ahead)
{
    for (int i = 0; i < 2 && ahead->at < ahead->end; i++) {
        __builtin_prefetch(ahead->at, 0, 2);
        ahead->at += 64;
        if (ahead->at >= ahead->row_end) {
            ahead->row_end += ahead->row;
            ahead->at = ahead->row_end - ahead->bytes;
        }
    }
}

/* Features with what fills the last vector of a row: zeros. */
INLINE int64_t padded(int64_t features)
{
    return (features + 15) / 16 * 16;
}

/* Up to sixteen features of a row, from `f` on; nothing behind them is read. */
INLINE vf read_sixteen(int type, const uint8_t *row, int64_t f, int64_t features)
{
    if (type == TYPE_Q8_0) {
        const uint8_t *block = row + f / BLOCK * 34;
        return vf_mul(vf_splat(half_value(block)), vf_from_int(vi_load_i8(block + 2 + f % BLOCK)));
    }
    const size_t size = type == TYPE_F16 ? 2 : 4;
    const uint8_t *at = row + (size_t)f * size;
    uint8_t last[64] = {0};
    if (features - f < 16)
        at = memcpy(last, at, (size_t)(features - f) * size);
    return type == TYPE_F16 ? vf_load_half(at) : vf_load((const float *)(const void *)at);
}

/* Sixteen features of up to sixteen rows become columns of a tile. */
INLINE void turn_block(int type, const uint8_t *at, size_t row, int64_t count, int64_t f, int64_t features,
                       float *to)
{
    vf lines[16];
    UNROLL for (int i = 0; i < 16; i++)
        lines[i] = i < count ? read_sixteen(type, at + (size_t)i * row, f, features) : vf_zero();
#if defined(HAS_TURN)
    vf_turn(lines);
    UNROLL for (int i = 0; i < 16; i++) vf_store(to + i * CELLS, lines[i]);
#else
    float rows[16 * 16];
    for (int i = 0; i < 16; i++)
        vf_store(rows + 16 * i, lines[i]);
    for (size_t i = 0; i < 16; i += 4)
        for (size_t j = 0; j < 16; j += 4)
            transpose_four(rows + 16 * i + j, 16, to + j * CELLS + i, CELLS);
#endif
}

INLINE void turn_rows_of(int type, const uint8_t *at, size_t row, int64_t cells, int64_t features, float *to)
{
    for (int64_t cell = 0; cell < CELLS; cell += 16, at += 16 * row)
        for (int64_t f = 0; f < features; f += 16) {
            float *columns = to + f * CELLS + cell;
            if (cells - cell >= 16 && features - f >= 16)
                turn_block(type, at, row, 16, f, f + 16, columns);
            else
                turn_block(type, at, row, cells - cell, f, features, columns);
        }
}

INLINE void read_rows_of(int type, const uint8_t *at, size_t row, int64_t cells, int64_t features, float *to)
{
    const int64_t whole = features / 16 * 16;
    for (int64_t i = 0; i < cells; i++, at += row) {
        for (int64_t f = 0; f < whole; f += 16, to += 16)
            vf_store(to, read_sixteen(type, at, f, f + 16));
        if (whole < features) {
            vf_store(to, read_sixteen(type, at, whole, features));
            to += 16;
        }
    }
    memset(to, 0, (size_t)((CELLS - cells) * padded(features)) * sizeof *to);
}

/* Turn a head's rows of a tile into floats, one feature of all cells after the other; what is missing
 * from a whole tile becomes zeros. */
static void turn_rows(const struct rows *from, int64_t features, float *to)
{
    if (from->type == TYPE_F16)
        turn_rows_of(TYPE_F16, from->at, from->row, from->count, features, to);
    else if (from->type == TYPE_F32)
        turn_rows_of(TYPE_F32, from->at, from->row, from->count, features, to);
    else
        turn_rows_of(TYPE_Q8_0, from->at, from->row, from->count, features, to);
}

/* The same, one cell after the other. */
static void read_rows(const struct rows *from, int64_t features, float *to)
{
    if (from->type == TYPE_F16)
        read_rows_of(TYPE_F16, from->at, from->row, from->count, features, to);
    else if (from->type == TYPE_F32)
        read_rows_of(TYPE_F32, from->at, from->row, from->count, features, to);
    else
        read_rows_of(TYPE_Q8_0, from->at, from->row, from->count, features, to);
}

INLINE int is_hidden(const uint8_t *mask, int64_t cell)
{
    uint16_t half;
    memcpy(&half, mask + 2 * cell, 2);
    return half == HALF_HIDDEN;
}

/* Zeros for the keys of a tile that a mask hides. */
static void blank_keys(const uint8_t *mask, int64_t cell, int64_t cells, int64_t features, float *keys)
{
    for (int64_t i = 0; i < cells; i++)
        for (int64_t f = 0; is_hidden(mask, cell + i) && f < features; f++)
            keys[f * CELLS + i] = 0.0f;
}

/* The same for its values. */
static void blank_values(const uint8_t *mask, int64_t cell, int64_t cells, int64_t features, float *values)
{
    for (int64_t i = 0; i < cells; i++)
        if (is_hidden(mask, cell + i))
            memset(values + i * padded(features), 0, (size_t)padded(features) * sizeof *values);
}
