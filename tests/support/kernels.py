"""Which levels of the kernels this processor has."""

from __future__ import annotations

from tampu.ml.kernels import KernelChoice, find_kernels

LEVELS = ("portable", "avx2", "avx512")


def levels() -> tuple[str, ...]:
    """Return the usable levels, the slowest first; the portable one is always there."""
    kernels = find_kernels(KernelChoice())
    return LEVELS[: LEVELS.index(kernels.level) + 1] if kernels else ()
