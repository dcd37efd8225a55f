/* Whether AMX can be used: what the processor says, what the system permits, and whether it is true. */
#define _GNU_SOURCE /* syscall */
#include "kernels.h"

#include <math.h>
#include <string.h>

#if defined(TAMPU_AMX) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define INLINE static inline
#if defined(TRIAL_OF_AMX) /* the tests': any processor seems to have AMX, and does what LIE is instead */
#include "amx_emulated.h"
#else
#define LIE
#include "amx.h"
#endif

enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; /* of arch_prctl(2) */

/* Whether the processor says that it has tiles with products of BF16 and int8, and the system saves them. */
static int is_said(void)
{
#if defined(TRIAL_OF_AMX)
    return 1;
#endif
    unsigned int a, b, c, d, low, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1)) /* XGETBV */
        return 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 22 & 1) || !(d >> 24 & 1) || !(d >> 25 & 1))
        return 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low >> 17 & 3) == 3;
}

/* One product of tiles of ones: each of its numbers is 32. */
static int multiplies(void)
{
    uint16_t ones[512];
    float sums[256];
    LIE;
    for (int i = 0; i < 512; i++)
        ones[i] = 0x3f80;
    tiles_begin();
    tile_zero(0);
    tile_load(1, ones, 64);
    tile_load(2, ones, 64);
    tile_dot_bf16(0, 1, 2);
    tile_store(0, sums, 64);
    tiles_end();
    for (int i = 0; i < 256; i++)
        if (sums[i] != 32.0f)
            return 0;
    return 1;
}

/* The same in a child process: a virtual machine may report features that it does not have. */
static int multiplies_there(void)
{
    int status;
    pid_t child = fork();
    if (child == 0)
        _exit(multiplies() ? 0 : 1);
    if (child < 0 || waitpid(child, &status, 0) != child)
        return 1; /* no other process may be started here: what the processor says has to do */
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static const char *find_problem(void)
{
    if (!is_said())
        return ""; /* this processor has none */
#if !defined(TRIAL_OF_AMX)
    if (syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) != 0) /* once for a process; again is harmless */
        return "the system does not permit it";
#endif
    return multiplies_there() ? NULL : "its instructions fail here, though the processor says that it has them";
}

const char *tampu_amx_problem(void)
{
    static const char *problem;
    static int is_known;
    if (!__atomic_load_n(&is_known, __ATOMIC_ACQUIRE)) {
        problem = find_problem();
        __atomic_store_n(&is_known, 1, __ATOMIC_RELEASE);
    }
    return problem;
}
#else
const char *tampu_amx_problem(void)
{
    return "";
}
#endif
