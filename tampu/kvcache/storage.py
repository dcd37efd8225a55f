"""The storage of one KV-cache group on the device: sizes, and the interface of its kinds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from tampu.kvcache.checkpoints import KEPT_ENDS, MIN_UNIT, CheckpointGrid
from tampu.kvcache.groups import KVCacheGroup
from tampu.kvcache.masks import CellRange, PositionRange, Segment
from tampu.kvcache.spec import KVCacheSpec, StateSpec
from tampu.ml import Context, Tensor
from tampu.nn import LayerCache
from tampu.settings.model_settings import ModelSettings

PADDING = 256

_WORKING_STATES = 4  # per slot: the one before a batch, those after it and before the next
_MIN_CHECKPOINTS = 2  # per slot
_MIN_DRAFTS, _MAX_DRAFTS = 16, 48  # of a step, if recurrent layers keep their inputs
_UNIFIED_WINDOWS = 2  # of sequences, with as much again; the slots share them


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


class RaggedBatch(NamedTuple):
    """Parts of sequences of any lengths, some with drafts, which recurrent layers compute together.

    Attributes:
        sequences: the number of sequences.
        tokens: of all of them.
        replayed: tokens before these that are replayed; some may be of no sequence.
        drafts: of the tokens, those whose inputs are kept.
    """

    sequences: int
    tokens: int
    replayed: int
    drafts: int


StateView: TypeAlias = tuple[MicroBatch | RaggedBatch, ...]

CacheView: TypeAlias = CellRange | PositionRange | StateView
"""What a batch reads in one group; graphs are built for it."""


@dataclass(frozen=True, slots=True)
class CacheSize:
    """The required capacity of a cache.

    Attributes:
        slots: sequences running at once.
        context: the maximum number of tokens of each.
        batch: tokens computed at once.
        state_bytes: of checkpoints of recurrent layers, all slots together, if a few fit into it.
        kv_unified: whether all slots share the cells of one context; otherwise each has its own.
    """

    slots: int
    context: int
    batch: int
    state_bytes: int = ModelSettings.state_cache
    kv_unified: bool = False

    def cells(self, spec: KVCacheSpec) -> int:
        """Return how many cells a group needs, a multiple of the padding.

        With a window each sequence owns what its next token attends to, plus one batch; as much
        again is kept for prompts that share a prefix.
        """
        contexts = 1 if self.kv_unified else self.slots
        windows = min(self.slots, _UNIFIED_WINDOWS) if self.kv_unified else self.slots
        cells = contexts * self.context
        if spec.max_visible is not None:
            cells = min(cells, windows * 2 * max(spec.max_visible, PADDING) + self.batch)
        return -(-cells // PADDING) * PADDING

    def bounded(self, features: int) -> CacheSize:
        """Return the size with fewer slots, if their states would take more than checkpoints.

        Args:
            features: of a sequence's state, in all layers together.
        """
        states = self.state_bytes // max(4 * features, 1)
        return replace(self, slots=max(min(self.slots, states // _WORKING_STATES), 1))

    @property
    def max_micro_batches(self) -> int:
        """The maximum number of micro-batches in a batch."""
        return self.batch // MIN_UNIT + 3 * self.slots

    def checkpoints(self, features: int) -> int:
        """Return how many checkpoints to keep, of this many features in all layers together."""
        affordable = self.state_bytes // max(4 * features, 1)
        useful = self.slots * (KEPT_ENDS + self.context // MIN_UNIT)
        return max(min(useful, affordable), self.slots * _MIN_CHECKPOINTS)

    @property
    def kept_inputs(self) -> int:
        """Of how many drafts recurrent layers keep the inputs: of two steps."""
        return 2 * min(max(4 * self.slots, _MIN_DRAFTS), _MAX_DRAFTS)

    def states(self, features: int) -> int:
        """Return how many states to keep, the checkpoints among them."""
        return self.slots * _WORKING_STATES + self.checkpoints(features)

    def grid(self, features: int) -> CheckpointGrid:
        """Return where the checkpoints of a sequence are.

        One sequence may use all: rarely are those of all slots as long as the context.
        """
        checkpoints = self.checkpoints(features)
        return CheckpointGrid(max(checkpoints - KEPT_ENDS, _MIN_CHECKPOINTS))


Arrays: TypeAlias = list[npt.NDArray[np.generic]]
"""The data of a graph's inputs, in their order."""


class GroupStorage(Protocol):
    """The tensors of one group.

    Attributes:
        cells: the number of cells.
    """

    cells: int

    @property
    def spec(self) -> KVCacheSpec | StateSpec:
        """The spec of its layers."""
        ...

    def group(self) -> KVCacheGroup:
        """Return the group of its cells, all of them empty."""
        ...

    def step(self, segments: Sequence[Segment], group: int) -> tuple[CacheView, Arrays]:
        """Return what a batch reads, and the data of its inputs.

        Args:
            segments: of the batch.
            group: the row in the segments' cells.
        """
        ...

    def scratch(self, tokens: int, view: CacheView, cell: int) -> Arrays:
        """Return data of inputs with which a batch writes all of its tokens to one cell."""
        ...

    def views_at_fill(self, tokens: int, cells: int) -> list[CacheView]:
        """Return the views of batches of `tokens` tokens while `cells` cells are in use."""
        ...

    def build(
        self, context: Context, tokens: int, view: CacheView
    ) -> tuple[Mapping[int, LayerCache], list[Tensor]]:
        """Add the layers to a graph for `tokens` tokens; return them by index, and the inputs."""
        ...

    def row_tensors(self) -> list[tuple[Tensor, bool]]:
        """Return the tensors that have a row for each cell, and whether the rows are columns."""
        ...
