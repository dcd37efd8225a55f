"""Rotary position embedding (RoFormer, arXiv:2104.09864)."""

from __future__ import annotations

import ctypes
import enum
import math
from dataclasses import dataclass, replace

from tampu.ml.checks import SINGLE, require
from tampu.ml.library import gg
from tampu.ml.tensor import Tensor
from tampu.ml.types import GGMLType


class RopeMode(enum.IntEnum):
    """Which features form a rotated pair (ggml's numbers)."""

    INTERLEAVED = 0  # neighbours: 2i and 2i + 1
    HALVES = 2  # i and i + dimensions / 2, as in GPT-NeoX
    SECTIONS = 8  # as HALVES, each section of the pairs by a position of its own
    INTERLEAVED_SECTIONS = 40  # as SECTIONS, the pairs of three sections taking turns


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


UNSCALED = RopeScaling()


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotates pairs of features by position.

    Attributes:
        dimensions: how many features of a head are rotated, from the first.
        base: of the geometric series of frequencies.
        mode: which features form a pair.
        scaling: for contexts longer than the model was trained on.
        factors: F32, (dimensions / 2,): divides each frequency (Llama 3.1).
        sections: how many pairs each of four positions rotates (Qwen2-VL's M-RoPE,
            arXiv:2409.12191), for the modes with sections. Where they take turns and the second or
            third has no pairs left, the fourth position rotates.
    """

    dimensions: int
    base: float
    mode: RopeMode
    scaling: RopeScaling = UNSCALED
    factors: Tensor | None = None
    sections: tuple[int, int, int, int] | None = None

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        """Return x (tokens, heads, features) rotated.

        Args:
            x: F32.
            positions: I32, (tokens,); with sections (4, tokens).

        Raises:
            ShapeError: for operands that do not fit.
        """
        what, scaling, factors = f"rope of {self.dimensions} dimensions", self.scaling, self.factors
        wanted = x.shape[:1] if self.sections is None else (4, *x.shape[:1])
        fits = len(x.shape) == 3 and positions.shape == wanted
        fits = fits and 0 < self.dimensions <= x.shape[-1] and self.dimensions % 2 == 0
        require(fits and x._is(SINGLE) and positions.type is GGMLType.I32, what, x, positions)
        if factors is not None:
            fits = len(factors.shape) == 1 and factors.shape[0] >= self.dimensions // 2
            require(fits and factors._is(SINGLE), what, factors)
        kind: tuple[object, ...]
        operation, kind = gg.ggml_rope_ext, (int(self.mode),)
        if self.sections is not None:
            operation = gg.ggml_rope_multi
            kind = ((ctypes.c_int * 4)(*self.sections), int(self.mode))
            positions = positions.reshape(4 * x.shape[0])
        pointer = operation(
            x._context().arena,
            x.pointer,
            positions.pointer,
            factors.pointer if factors else None,
            self.dimensions,
            *kind,
            scaling.original_context,
            self.base,
            scaling.frequency_scale,
            scaling.extrapolation,
            scaling.magnitude,
            scaling.beta_fast,
            scaling.beta_slow,
        )
        return x._like(pointer)

    def move(self, x: Tensor, offsets: Tensor) -> Tensor:
        """Return rotated x (tokens, heads, features) at positions that are `offsets` later.

        Its magnitude stays, since YaRN has changed it already.
        """
        magnitude = 1.0
        if self.scaling.extrapolation != 0.0:  # ggml multiplies by this factor
            magnitude /= 1.0 + 0.1 * math.log(1.0 / self.scaling.frequency_scale)
        return replace(self, scaling=replace(self.scaling, magnitude=magnitude))(x, offsets)
