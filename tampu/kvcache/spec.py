"""How far back a token attends, which decides what must be kept and what a mask shows.

Layers of the same reach share a `Space`: their rows lie in the same cells. Positions are counted
within a sequence, from 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tampu.nn import CacheShape, StateShape


@dataclass(frozen=True, slots=True)
class Reach:
    """The positions that a token sees: all before it, unless a window or a chunk limits them.

    Attributes:
        window: the number of positions seen, the token's own included; None: no limit.
        chunk: positions before the multiple of this that the token's own follows are not seen.
        is_state: what is kept is not a row for each token, but a state of the whole past, behind
            some tokens only; a token needs the state behind the one before it.
    """

    window: int | None = None
    chunk: int | None = None
    is_state: bool = False

    def first(self, position: int) -> int:
        """Return the first position that a token at `position` sees."""
        if self.is_state:
            return max(position - 1, 0)
        first = 0
        if self.window is not None:
            first = max(first, position - self.window + 1)
        if self.chunk is not None:
            first = max(first, position // self.chunk * self.chunk)
        return first

    def firsts(self, positions: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Return `first` of many positions."""
        first = np.zeros_like(positions)
        if self.window is not None:
            first = np.maximum(first, positions - (self.window - 1))
        if self.chunk is not None:
            first = np.maximum(first, positions // self.chunk * self.chunk)
        return first

    @property
    def limit(self) -> int | None:
        """The most positions that a token sees; None if there is no limit."""
        limits = [limit for limit in (self.window, self.chunk) if limit is not None]
        return min(limits, default=None)

    def resumable(self, is_there: npt.NDArray[np.bool_], start: int) -> npt.NDArray[np.bool_]:
        """Say at which lengths a sequence could go on.

        Args:
            is_there: (n,): whether the rows of the positions from `start` on are in the cache;
                what the sequence needs of those before `start` it has. Of layers that keep
                states: whether the state behind them is.
            start: a length at which it can go on.

        Returns:
            (n,): for the lengths `start` + 1 to `start` + n.
        """
        if self.is_state:
            return is_there
        positions = np.arange(start, start + len(is_there), dtype=np.int32)
        last_gap = np.maximum.accumulate(np.where(is_there, -1, positions))
        return last_gap < np.maximum(self.firsts(positions + 1), start)


def reach_of(shape: CacheShape) -> Reach:
    """Return the reach of a layer."""
    if isinstance(shape, StateShape):
        return Reach(is_state=True)
    return Reach(shape.window, shape.chunk)
