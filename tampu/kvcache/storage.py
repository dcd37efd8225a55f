"""What the layers of one reach keep on the device, whatever it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from tampu.kvcache.masks import Segment, Span
from tampu.kvcache.spec import Reach
from tampu.ml import Context, Tensor
from tampu.nn import LayerCache

PADDING = 256

_STATES = 6
"""States of each slot at least: the one before a batch, those behind it, some to go back to."""

_STATE_BYTES = 64 * 2**20  # that each slot may take for more of them
_APART = 32  # tokens between the states of a prompt, at least


class Run(NamedTuple):
    """Equally long parts of sequences, which recurrent layers compute together.

    Attributes:
        sequences: how many.
        tokens: of each.
        continues: whether they go on from the states that the run before this ended with.
    """

    sequences: int
    tokens: int
    continues: bool = False


Reading: TypeAlias = Span | tuple[Run, ...]
"""What a batch reads in one space; graphs are built for it."""


@dataclass(frozen=True, slots=True)
class CacheSize:
    """How much a cache must hold.

    Attributes:
        slots: sequences at once.
        context: tokens of each.
        batch: tokens that are computed at once.
    """

    slots: int
    context: int
    batch: int

    def cells(self, reach: Reach) -> int:
        """Return how many rows layers of a reach take, a multiple of the padding.

        With a limited reach each sequence owns what its next token sees, and a batch comes on top;
        as much again is kept to go back to, for prompts that share a beginning.
        """
        cells = self.slots * self.context
        if reach.limit is not None:
            cells = min(cells, self.slots * 2 * max(reach.limit, PADDING) + self.batch)
        return -(-cells // PADDING) * PADDING

    @property
    def most_runs(self) -> int:
        """The most parts that recurrent layers compute one by one in a batch."""
        return self.batch // _APART + 3 * self.slots

    def states(self, features: int) -> int:
        """Return how many states are kept that have so many features in all layers."""
        wanted = _STATES + self.context // _APART
        return self.slots * max(_STATES, min(wanted, _STATE_BYTES // max(4 * features, 1)))

    def apart(self, states: int) -> int:
        """Return how many tokens of a prompt lie between states, if there are so many in all.

        A prompt as long as the context leaves no more than a slot's share.
        """
        spare = states // self.slots - _STATES // 2
        return -(-self.context // (spare * _APART)) * _APART


class StepPart(NamedTuple):
    """What a batch does in one space.

    Attributes:
        reading: what it reads.
        arrays: the data of the inputs that `Storage.begin` makes for this reading.
    """

    reading: Reading
    arrays: list[npt.NDArray[np.generic]]


class GraphPart(NamedTuple):
    """The layers of one space as one graph sees them.

    Attributes:
        layers: by their index in the model.
        inputs: the graph's inputs, in the order of `StepPart.arrays`.
    """

    layers: Mapping[int, LayerCache]
    inputs: list[Tensor]


class Storage(Protocol):
    """What the layers of one reach keep.

    Attributes:
        reach: of the layers.
        cells: how many there are.
        apart: how many tokens of a prompt lie between those that have cells; 1: all have.
    """

    reach: Reach
    cells: int
    apart: int

    def step(self, segments: Sequence[Segment], space: int) -> StepPart:
        """Return what a batch does here; `space` is the storage's row in the segments' cells."""
        ...

    def filled(self, tokens: int, cells: int) -> list[Reading]:
        """Return what batches of `tokens` tokens may read while `cells` cells are in use."""
        ...

    def begin(self, context: Context, tokens: int, reading: Reading) -> GraphPart:
        """Return the layers as a graph for `tokens` tokens that reads this sees them."""
        ...
