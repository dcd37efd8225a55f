"""States of recurrent layers.

A state is a row of a tensor, as a token's keys are. A batch reads one row per sequence, the state
before its first token there, and writes one after its last token and one at each checkpoint. It
never writes the row that it reads, so keeping a checkpoint or resuming from it copies nothing, and
the package's kernels read and write states where they are.

Tokens of a sequence depend on one another, sequences do not: parts of equal length form a
micro-batch, such as a decoding step of many sequences, and a part is split at a checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from tampu.errors import ShapeError
from tampu.kvcache.cells import NO_CELL, Cells
from tampu.kvcache.groups import KVCacheGroup, RecurrentGroup
from tampu.kvcache.masks import Segment
from tampu.kvcache.spec import StateSpec
from tampu.kvcache.storage import Arrays, CacheSize, CacheView, MicroBatch
from tampu.ml import Context, GGMLType, Tensor
from tampu.ml.recurrence import StateRows
from tampu.nn import Advance, History, LayerCache, States, StateShape, Tensors


@dataclass(slots=True)
class _Planned:
    """A micro-batch with the rows that it reads and writes."""

    tokens: int
    reads: list[int]
    writes: list[int]
    continues: bool = False

    def takes(self, tokens: int, read: int) -> bool:
        """Return whether a part of another sequence can join."""
        return not self.continues and tokens == self.tokens and read not in self.writes

    @property
    def micro_batch(self) -> MicroBatch:
        return MicroBatch(len(self.writes), self.tokens, self.continues)


class StateStorage:
    """The states of all recurrent layers; the last row of each is zero, the initial state.

    Attributes:
        spec: of the layers.
        cells: rows of each layer except the last.
        layers: the states of each, F32, (rows, features).
        shapes: of these states.
    """

    def __init__(self, context: Context, layers: Mapping[int, StateShape], size: CacheSize) -> None:
        """Allocate all states; the context owns them.

        Raises:
            OutOfMemoryError: if it cannot be allocated.
        """
        self.spec = StateSpec()
        features = sum(shape.size for shape in layers.values())
        self.cells = size.states(features)
        self._grid = size.grid(features)
        self._slots = size.slots
        self.shapes = layers
        self.layers = {
            index: tuple(
                context.layer(index).zeros((self.cells + 1, math.prod(each)), GGMLType.F32)
                for each in shape.shapes
            )
            for index, shape in layers.items()
        }

    def group(self) -> KVCacheGroup:
        """Return the group of its cells; checkpoints leave two of them to each other slot."""
        return RecurrentGroup(Cells(self.cells), self._grid, reserved=2 * self._slots)

    def step(self, segments: Sequence[Segment], group: int) -> tuple[CacheView, Arrays]:
        """Return the micro-batches of a batch; the rows that each reads, and those it writes."""
        planned = self._planned(segments, group)
        rows: Arrays = []
        for each in planned:
            rows += [np.array(each.reads, np.int32), np.array(each.writes, np.int64)]
        return tuple(each.micro_batch for each in planned), rows

    def scratch(self, tokens: int, view: CacheView, cell: int) -> Arrays:  # noqa: ARG002
        """Return data of inputs with which a batch writes all of its states to one cell."""
        parts = view if isinstance(view, tuple) else ()
        rows: Arrays = []
        for part in parts:
            rows.append(np.full(part.sequences, self.cells, np.int32))
            rows.append(np.full(part.sequences, cell, np.int64))
        return rows

    def views_at_fill(self, tokens: int, cells: int) -> list[CacheView]:  # noqa: ARG002
        """Return the view of one long sequence, and that of all slots, each part split in two."""
        parts = min(self._slots, tokens // 2)
        lengths = [tokens // parts] * (parts - 1) if parts else []
        lengths.append(tokens - sum(lengths))
        cut = [
            MicroBatch(1, n, each > 0) for total in lengths for each, n in enumerate(_halves(total))
        ]
        return [(MicroBatch(1, tokens),), tuple(cut)]

    def build(
        self, context: Context, tokens: int, view: CacheView
    ) -> tuple[Mapping[int, LayerCache], list[Tensor]]:
        """Add the layers to a graph with these micro-batches."""
        if (
            not isinstance(view, tuple)
            or sum(part.sequences * part.tokens for part in view) != tokens
        ):
            raise ShapeError(f"states of {tokens} tokens cannot be read by {view}")
        # A slice of one input for all would begin where Vulkan cannot look rows up.
        rows = [
            (
                context.input("states_read", (part.sequences,), GGMLType.I32),
                context.input("states_written", (part.sequences,), GGMLType.I64),
            )
            for part in view
        ]
        layers = {
            index: StateLayer(context, states, self.shapes[index], view, rows)
            for index, states in self.layers.items()
        }
        return layers, [tensor for each in rows for tensor in each]

    def row_tensors(self) -> list[tuple[Tensor, bool]]:
        """Return the states of all layers, a row each."""
        return [(each, False) for states in self.layers.values() for each in states]

    def _planned(self, segments: Sequence[Segment], group: int) -> list[_Planned]:
        planned: list[_Planned] = []
        for segment in segments:
            after = segment.start + np.flatnonzero(segment.cells[group, segment.start :] > NO_CELL)
            written = [int(cell) for cell in segment.cells[group, after]]
            lengths = [int(each) for each in np.diff(after, prepend=segment.start - 1)]
            read = int(segment.cells[group, segment.start - 1]) if segment.start else self.cells
            if len(lengths) == 1 and planned and planned[-1].takes(lengths[0], read):
                planned[-1].reads.append(read)
                planned[-1].writes += written
                continue
            reads = [read, *written[:-1]]
            planned += [
                _Planned(length, [reads[part]], [cell], continues=part > 0)
                for part, (length, cell) in enumerate(zip(lengths, written, strict=True))
            ]
        return planned


@dataclass(frozen=True, slots=True)
class StateLayer:
    """One layer's states in one graph: a `LayerCache`."""

    context: Context
    states: Tensors
    shape: StateShape
    parts: Sequence[MicroBatch]
    rows: Sequence[tuple[Tensor, Tensor]]

    def update(self, keys: Tensor | None, values: Tensor | None) -> History:  # noqa: ARG002
        """Raise ShapeError: there are no keys and values here."""
        raise ShapeError("a layer with states has no keys and values")

    def advance(self, inputs: Tensors, advance: Advance) -> Tensor:
        """Compute the tokens of each sequence, from the state before them to the one after."""
        outputs: Tensor | None = None
        states: States = ()
        row = 0
        for part, (read, written) in zip(self.parts, self.rows, strict=True):
            before = [each.after for each in states] if part.continues else [None] * len(states)
            states = tuple(
                StateRows(stored, shape, read, written, each)
                for stored, shape, each in zip_longest(self.states, self.shape.shapes, before)
            )
            output = advance(tuple(_rows(each, row, part) for each in inputs), states)
            flat = output.reshape(part.sequences * part.tokens, -1)
            outputs = outputs.concat(flat, 0) if outputs else flat
            row += part.sequences * part.tokens
        if outputs is None:
            raise ShapeError("a batch without tokens has no states")
        return outputs


def _rows(tensor: Tensor, start: int, part: MicroBatch) -> Tensor:
    """View rows of (tokens, features) as (sequences, tokens, features)."""
    shape = (part.sequences, part.tokens, tensor.shape[1])
    step = tensor.strides[0]
    return tensor.strided(shape, (part.tokens * step, step), start * step)


def _halves(length: int) -> list[int]:
    return [length - length // 2, length // 2] if length > 1 else [length]
