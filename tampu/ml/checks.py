"""Checks of operands. ggml aborts the process on invalid ones, so they are checked before."""

from __future__ import annotations

from collections.abc import Sequence

from tampu.errors import ShapeError
from tampu.ml.types import GGMLType as T

SINGLE = frozenset({T.F32})
FLOATS = frozenset({T.F32, T.F16})
READABLE = frozenset(T) - {T.Q8_1, T.Q8_K, T.I8, T.I16, T.I32, T.I64, T.F64}
"""Types whose rows ggml turns into floats: for weights, tables and caches."""
WRITABLE = READABLE - {T.IQ1_S, T.IQ1_M, T.IQ2_XXS, T.IQ2_XS, T.IQ2_S, T.IQ3_XXS, T.IQ3_S}
"""Types that ggml makes out of floats."""


def require(is_right: bool, what: str, *operands: object) -> None:  # noqa: FBT001
    """Check what an operation requires of its operands.

    Raises:
        ShapeError: naming the operation and the operands.
    """
    if not is_right:
        raise ShapeError(f"{what}: {', '.join(map(repr, operands))}")


def divides(part: Sequence[int], whole: Sequence[int]) -> bool:
    """Whether a tensor of the shape `part` fills the shape `whole` when it is repeated."""
    pairs = zip(reversed(whole), reversed(part), strict=False)
    return len(part) <= len(whole) and all(a % b == 0 for a, b in pairs)
