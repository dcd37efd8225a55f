"""KV-cache specs: how far back a layer attends, which decides what is kept and what is masked.

Layers with the same spec share a `KVCacheGroup`: what they store of a token is in the same cell.
Positions are counted within a sequence, from 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tampu.nn import CachePart, LayerShape, StateShape


@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """The positions that a token attends to: all before it, unless a window or chunk limits them.

    Attributes:
        window: number of visible positions, the token's own included; None: no limit.
        chunk: positions before the start of the token's chunk of this size are not visible.
        is_causal: whether bidirectional groups of tokens attend to earlier ones only, too.
    """

    window: int | None = None
    chunk: int | None = None
    is_causal: bool = False

    def first_visible(self, position: int) -> int:
        """Return the first position that a token at `position` attends to."""
        first = 0
        if self.window is not None:
            first = max(first, position - self.window + 1)
        if self.chunk is not None:
            first = max(first, position // self.chunk * self.chunk)
        return first

    def first_visible_each(self, positions: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Return `first_visible` of many positions."""
        first = np.zeros_like(positions)
        if self.window is not None:
            first = np.maximum(first, positions - (self.window - 1))
        if self.chunk is not None:
            first = np.maximum(first, positions // self.chunk * self.chunk)
        return first

    @property
    def max_visible(self) -> int | None:
        """The maximum number of positions that a token attends to; None: no limit."""
        limits = [limit for limit in (self.window, self.chunk) if limit is not None]
        return min(limits, default=None)

    def resumable(self, is_cached: npt.NDArray[np.bool_], start: int) -> npt.NDArray[np.bool_]:
        """Return whether a sequence could continue at the lengths `start` + 1 to `start` + n: (n,).

        Args:
            is_cached: (n,): whether each position from `start` on is in the cache.
            start: a length at which the sequence can continue.
        """
        positions = np.arange(start, start + len(is_cached), dtype=np.int32)
        last_gap = np.maximum.accumulate(np.where(is_cached, -1, positions))
        return last_gap < np.maximum(self.first_visible_each(positions + 1), start)


@dataclass(frozen=True, slots=True)
class StateSpec:
    """The spec of recurrent layers: the cache has states of the whole past, after some tokens."""


def spec_of(shape: CachePart) -> KVCacheSpec | StateSpec:
    """Return the spec of a part of a layer's cache."""
    return StateSpec() if isinstance(shape, StateShape) else attention_spec(shape)


def attention_spec(shape: LayerShape) -> KVCacheSpec:
    """Return the spec of a layer with attention."""
    return KVCacheSpec(shape.window, shape.chunk, is_causal=shape.is_causal)
