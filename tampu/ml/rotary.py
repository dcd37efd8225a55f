"""Rotary position embedding: which features form pairs, how frequencies are stretched."""

from __future__ import annotations

import ctypes
import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tampu.ml.checks import SINGLE, require
from tampu.ml.library import gg
from tampu.ml.types import GGMLType

if TYPE_CHECKING:
    from tampu.ml.tensor import Tensor


class RopeMode(enum.IntEnum):
    """Which features form a rotated pair (ggml's numbers)."""

    INTERLEAVED = 0  # neighbours: 2i and 2i + 1
    HALVES = 2  # i and i + dimensions / 2, as in GPT-NeoX
    SECTIONS = 8  # as HALVES, each section of the pairs by a position of its own


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched for longer contexts (YaRN, arXiv:2309.00071).

    Attributes:
        frequency_scale: positions are multiplied by this (linear scaling by 1 / factor).
        original_context: the length the model was trained on first, for YaRN.
        extrapolation: YaRN's mix factor; 0: linear scaling alone.
        magnitude: the result is multiplied by this.
        beta_fast: rotations above which YaRN keeps a frequency.
        beta_slow: rotations below which YaRN scales it fully.
    """

    frequency_scale: float = 1.0
    original_context: int = 131072
    extrapolation: float = 0.0
    magnitude: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0


def rotate(
    x: Tensor,
    positions: Tensor,
    *,
    dimensions: int,
    base: float,
    mode: RopeMode,
    scaling: RopeScaling,
    factors: Tensor | None = None,
    sections: tuple[int, int, int, int] | None = None,
) -> Tensor:
    """Return x (tokens, heads, features) with pairs of features rotated by position.

    Source: RoFormer, arXiv:2104.09864.

    Args:
        x: F32.
        positions: I32, (tokens,); with sections (4, tokens).
        dimensions: how many of the features are rotated, from the first.
        base: of the geometric series of frequencies.
        mode: which features form a pair.
        scaling: for contexts longer than the model was trained on.
        factors: F32, (dimensions / 2,): each frequency is divided by its factor.
        sections: how many pairs each of the four positions rotates (Qwen2-VL's M-RoPE,
            arXiv:2409.12191), for the modes that are made for it.

    Raises:
        ShapeError: for operands that do not fit.
    """
    is_multiple = sections is not None
    wanted = (4, *x.shape[:1]) if is_multiple else x.shape[:1]
    fits = len(x.shape) == 3 and positions.shape == wanted
    fits = fits and 0 < dimensions <= x.shape[-1] and dimensions % 2 == 0
    is_known = x._is(SINGLE) and positions.type is GGMLType.I32
    require(fits and is_known, f"rope of {dimensions} dimensions", x, positions)
    if factors is not None:
        fits = len(factors.shape) == 1 and factors.shape[0] >= dimensions // 2
        require(fits and factors._is(SINGLE), f"rope of {dimensions} dimensions", factors)
    kind: tuple[object, ...]
    operation, kind = gg.ggml_rope_ext, (int(mode),)
    if sections is not None:
        operation, kind = gg.ggml_rope_multi, ((ctypes.c_int * 4)(*sections), int(mode))
        positions = positions.reshape(4 * x.shape[0])
    pointer = operation(
        x._context().arena,
        x.pointer,
        positions.pointer,
        factors.pointer if factors else None,
        dimensions,
        *kind,
        scaling.original_context,
        base,
        scaling.frequency_scale,
        scaling.extrapolation,
        scaling.magnitude,
        scaling.beta_fast,
        scaling.beta_slow,
    )
    return x._like(pointer)
