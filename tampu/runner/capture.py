"""What requests capture of the model while they are computed: points, tokens, and where it goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tampu.ml import Context, GGMLType, Tensor
from tampu.nn.points import Point

Rows: TypeAlias = npt.NDArray[np.float32]
Positions: TypeAlias = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class SequenceCapture:
    """What one request captures.

    Attributes:
        points: of the model, each once.
        positions: I32, (n,), ascending: of the tokens; those that are never computed do not count.
            None: all.
        take: is given the positions of some tokens, in their order, and the rows of each point; it
            is called on the run loop's thread.
        chunk: the maximum number of the prompt's tokens computed at once; None: as many as fit.
    """

    points: tuple[Point, ...]
    positions: Positions | None
    take: Callable[[Positions, Mapping[Point, Rows]], None]
    chunk: int | None = None

    def wanted(self, start: int, end: int) -> Positions:
        """Return the positions in [start, end) whose tokens are captured."""
        if self.positions is None:
            return np.arange(start, end, dtype=np.int32)
        first, last = np.searchsorted(self.positions, [start, end])
        return self.positions[first:last]

    @property
    def first(self) -> int:
        """The first position that is captured: from there on nothing is taken from the cache."""
        if self.positions is None or not len(self.positions):
            return 0
        return int(self.positions[0])


@dataclass(frozen=True, slots=True)
class CapturedRows:
    """What one step captures.

    Attributes:
        points: of all its requests.
        rows: I32, (n,): of the tokens in the batch.
    """

    points: tuple[Point, ...]
    rows: npt.NDArray[np.int32]


class GraphCapture:
    """The part of a graph that returns the values at points.

    Every token of such a graph has an output, so that its last layer computes all of them.

    Attributes:
        found: by point, (rows, features) each.
        every: I32, (tokens,): all rows of the batch.
    """

    def __init__(self, context: Context, tokens: int, rows: int) -> None:
        """Add its inputs to a graph.

        Args:
            context: of the graph.
            tokens: of the batch.
            rows: how many are returned.
        """
        self._context = context
        self._rows = context.input("captured_rows", (rows,), GGMLType.I32)
        self.every = context.input("every_row", (tokens,), GGMLType.I32)
        self.found: dict[Point, Tensor] = {}

    @property
    def inputs(self) -> tuple[Tensor, Tensor]:
        """The rows to return, I32, (n,), and all rows of the batch, I32, (tokens,)."""
        return self._rows, self.every

    def see(self, point: Point, value: Tensor) -> Tensor:
        """Have the graph return the rows of a value (tokens, features), which stays as it is."""
        self.found[point] = self._context.output(value.rows(self._rows))
        return value
