"""The storage of one KV-cache group on the device: sizes, and the interface of its kinds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from tampu.kvcache.masks import CellRange, Segment
from tampu.kvcache.spec import KVCacheSpec
from tampu.ml import Context, Tensor
from tampu.nn import LayerCache

PADDING = 256

_MIN_STATES = 6
"""States per slot: the one before a batch, those after it, and some checkpoints."""

_MAX_STATE_BYTES = 64 * 2**20  # per slot, for more states than that
_MIN_CHECKPOINT_INTERVAL = 32  # tokens


class MicroBatch(NamedTuple):
    """Equally long parts of sequences, which recurrent layers compute together.

    Attributes:
        sequences: the number of sequences.
        tokens: tokens of each.
        continues: whether they start from the final states of the micro-batch before this one.
    """

    sequences: int
    tokens: int
    continues: bool = False


CacheView: TypeAlias = CellRange | tuple[MicroBatch, ...]
"""What a batch reads in one group; graphs are built for it."""


@dataclass(frozen=True, slots=True)
class CacheSize:
    """The required capacity of a cache.

    Attributes:
        slots: sequences running at once.
        context: tokens of each.
        batch: tokens computed at once.
    """

    slots: int
    context: int
    batch: int

    def cells(self, spec: KVCacheSpec) -> int:
        """Return how many cells a group needs, a multiple of the padding.

        With a window each sequence owns what its next token attends to, plus one batch; as much
        again is kept for prompts that share a prefix.
        """
        cells = self.slots * self.context
        if spec.max_visible is not None:
            cells = min(cells, self.slots * 2 * max(spec.max_visible, PADDING) + self.batch)
        return -(-cells // PADDING) * PADDING

    @property
    def max_micro_batches(self) -> int:
        """The maximum number of micro-batches in a batch."""
        return self.batch // _MIN_CHECKPOINT_INTERVAL + 3 * self.slots

    def states(self, features: int) -> int:
        """Return how many states to keep, if one has this many features in all layers together."""
        wanted = _MIN_STATES + self.context // _MIN_CHECKPOINT_INTERVAL
        affordable = _MAX_STATE_BYTES // max(4 * features, 1)
        return self.slots * max(_MIN_STATES, min(wanted, affordable))

    def checkpoint_interval(self, states: int) -> int:
        """Return how many tokens of a prompt lie between checkpoints, given the number of states.

        A prompt as long as the context uses no more than its slot's share.
        """
        spare = states // self.slots - _MIN_STATES // 2
        unit = _MIN_CHECKPOINT_INTERVAL
        return -(-self.context // (spare * unit)) * unit


Arrays: TypeAlias = list[npt.NDArray[np.generic]]
"""The data of a graph's inputs, in their order."""


class GroupStorage(Protocol):
    """The tensors of one group.

    Attributes:
        spec: of its layers.
        cells: the number of cells.
        checkpoint_interval: tokens of a prompt per cell; 1: each token has one.
    """

    spec: KVCacheSpec
    cells: int
    checkpoint_interval: int

    def step(self, segments: Sequence[Segment], group: int) -> tuple[CacheView, Arrays]:
        """Return what a batch reads, and the data of its inputs.

        Args:
            segments: of the batch.
            group: the row in the segments' cells.
        """
        ...

    def views_at_fill(self, tokens: int, cells: int) -> list[CacheView]:
        """Return the views of batches of `tokens` tokens while `cells` cells are in use."""
        ...

    def build(
        self, context: Context, tokens: int, view: CacheView
    ) -> tuple[Mapping[int, LayerCache], list[Tensor]]:
        """Add the layers to a graph for `tokens` tokens; return them by index, and the inputs."""
        ...
