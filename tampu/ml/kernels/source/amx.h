/* AMX: eight tile registers of sixteen rows of 64 bytes, and products of two of them (Intel SDM, volume 1,
 * chapter 18). Written as instructions, because GCC 12's intrinsics are wrong: its `_tile_loadconfig` says
 * that it reads eight bytes of the configuration, so that the compiler drops the stores of the others. */

/* The 64 bytes that LDTILECFG reads. */
struct tile_configuration {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

/* Make all tiles sixteen rows of 64 bytes. A thread calls this before its first tile instruction, and again
 * when other code may have run on it. */
INLINE void tiles_begin(void)
{
    struct tile_configuration to = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        to.row_bytes[i] = 64;
        to.rows[i] = 16;
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(to) : "memory");
}

/* Give the tiles back, so that they need not be saved when the thread is switched. */
INLINE void tiles_end(void) { __asm__ volatile("tilerelease" : : : "memory"); }

/* The numbers of tiles are part of the instructions, hence macros. `stride`: bytes from row to row. */
#define tile_zero(t) __asm__ volatile("tilezero %%tmm" #t : : : "memory")
#define tile_load(t, from, stride)                                                                   \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t                                                 \
                     : : "r"((const void *)(from)), "r"((int64_t)(stride)) : "memory")
#define tile_store(t, to, stride)                                                                    \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)"                                             \
                     : : "r"((void *)(to)), "r"((int64_t)(stride)) : "memory")

/* sums += a * b, in 32-bit floats: `a` has a row of 32 BF16 for each row of the result, `b` sixteen rows of
 * pairs of BF16, a pair for each column of the result. */
#define tile_dot_bf16(sums, a, b)                                                                    \
    __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #sums : : : "memory")
/* The same for signed bytes: 64 of them in a row of `a`, four for each column in a row of `b`. */
#define tile_dot_int8(sums, a, b)                                                                    \
    __asm__ volatile("tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #sums : : : "memory")
