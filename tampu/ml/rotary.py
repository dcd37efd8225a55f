"""Positions: how rotary embeddings pair features and stretch frequencies."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tampu.ml.library import gg
from tampu.ml.operands import require
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


def as_floats(positions: Tensor) -> Tensor:
    """Return positions, I32 of any shape, as F32."""
    require(positions.type is GGMLType.I32, "as_floats", positions)
    context = positions._context()
    pointer = gg.ggml_cast(context.arena, positions.pointer, int(GGMLType.F32))
    return context.wrap(pointer, positions.shape, GGMLType.F32)


def at_most(positions: Tensor, limit: int) -> Tensor:
    """Return positions, I32, none of them greater than `limit`."""
    context = positions._context()
    bounded = gg.ggml_clamp(context.arena, as_floats(positions).pointer, 0.0, float(limit))
    pointer = gg.ggml_cast(context.arena, bounded, int(GGMLType.I32))
    return context.wrap(pointer, positions.shape, GGMLType.I32)
