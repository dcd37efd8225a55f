"""States of recurrent layers.

A state is a row of a tensor, as a token's keys are. A batch reads one row per sequence, the state
before its first token there, and writes one after its last token and one at each checkpoint. It
never writes the row that it reads, so keeping a checkpoint or resuming from it copies nothing, and
the package's kernels read and write states where they are.

Tokens of a sequence depend on one another, sequences do not: parts of equal length form a
micro-batch, such as a decoding step of many sequences, and a part is split at a checkpoint.

Drafts may be wrong, so there must be a state before each of them. If the kernels can, it is not
written, as it is large: the inputs of drafts are kept, and the next step replays those that were
right before its own tokens. Parts with drafts, or with tokens to replay, form a ragged batch
(compare arXiv:2408.15237, which replays too).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from tampu.errors import ShapeError
from tampu.kvcache.cells import Cells
from tampu.kvcache.groups import KVCacheGroup
from tampu.kvcache.masks import Segment
from tampu.kvcache.recurrent_group import RecurrentGroup
from tampu.kvcache.spec import StateSpec
from tampu.kvcache.state_parts import plan_parts
from tampu.kvcache.storage import Arrays, CacheSize, CacheView, MicroBatch, RaggedBatch
from tampu.ml import Context, GGMLType, Tensor
from tampu.ml.recurrence import PART_NUMBERS, StateRows
from tampu.nn import Advance, History, LayerCache, States, StateShape, Tensors


class StateStorage:
    """The states of all recurrent layers; the last row of each is zero, the initial state.

    Attributes:
        spec: of the layers.
        cells: rows of each layer except the last.
        layers: the states of each, F32, (rows, features).
        shapes: of these states.
        inputs: what each layer was given for drafts, F32, (rows, features) each; the last row is
            not used. Empty if drafts have states.
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

        def zeros(index: int, rows: int, widths: Iterable[int]) -> Tensors:
            storage = context.layer(index)
            return tuple(storage.zeros((rows, width), GGMLType.F32) for width in widths)

        self.layers = {
            index: zeros(index, self.cells + 1, map(math.prod, shape.shapes))
            for index, shape in layers.items()
        }
        can_replay = all(shape.inputs for shape in layers.values()) and all(
            kernels is not None and kernels.choice.recurrence
            for states in self.layers.values()
            for kernels in map(context.kernels_for, states)
        )
        self._kept = size.kept_inputs if can_replay else 0
        self.inputs = {
            index: zeros(index, self._kept + 1, shape.inputs)
            for index, shape in layers.items()
            if can_replay
        }

    def group(self) -> KVCacheGroup:
        """Return the group of its cells; checkpoints leave two of them to each other slot."""
        return RecurrentGroup(
            Cells(self.cells), self._grid, reserved=2 * self._slots, inputs=self._kept
        )

    def step(self, segments: Sequence[Segment], group: int) -> tuple[CacheView, Arrays]:
        """Return the micro-batches of a batch; the rows that each reads, and those it writes."""
        planned = plan_parts(segments, group, self.cells, self._kept)
        return tuple(each.view for each in planned), [
            array for each in planned for array in each.arrays
        ]

    def scratch(self, tokens: int, view: CacheView, cell: int) -> Arrays:  # noqa: ARG002
        """Return data of inputs with which a batch writes all of its states to one cell.

        It has no drafts.
        """
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
        if not isinstance(view, tuple) or sum(map(_tokens_of, view)) != tokens:
            raise ShapeError(f"states of {tokens} tokens cannot be read by {view}")
        # A slice of one input for all would begin where Vulkan cannot look rows up.
        parts = [_BuiltPart.of(context, part) for part in view]
        layers = {
            index: StateLayer(
                context, states, self.shapes[index], parts, self.inputs.get(index, ())
            )
            for index, states in self.layers.items()
        }
        return layers, [tensor for each in parts for tensor in each.tensors]

    def row_tensors(self) -> list[tuple[Tensor, bool]]:
        """Return the states of all layers, a row each."""
        return [(each, False) for states in self.layers.values() for each in states]


@dataclass(frozen=True, slots=True)
class _BuiltPart:
    """A micro-batch or a ragged batch in a graph, with its inputs; see `plan_parts`.

    Attributes:
        read: the cells of the states before.
        written: those of the states after, or the parts of a ragged batch.
        replayed: None: no tokens are replayed.
        drafts: which tokens are drafts; None: none is.
        kept: where their inputs are kept.
    """

    batch: MicroBatch | RaggedBatch
    read: Tensor
    written: Tensor
    replayed: Tensor | None = None
    drafts: Tensor | None = None
    kept: Tensor | None = None

    @classmethod
    def of(cls, context: Context, batch: MicroBatch | RaggedBatch) -> _BuiltPart:
        """Add the inputs to a graph."""
        count = batch.sequences
        read = context.input("states_read", (count,), GGMLType.I32)
        if isinstance(batch, MicroBatch):
            return cls(batch, read, context.input("states_written", (count,), GGMLType.I64))
        parts = context.input("state_parts", (count, PART_NUMBERS), GGMLType.I32)
        replayed = drafts = kept = None
        if batch.replayed:
            replayed = context.input("replayed", (batch.replayed,), GGMLType.I32)
        if batch.drafts:
            drafts = context.input("drafts", (batch.drafts,), GGMLType.I32)
            kept = context.input("kept", (batch.drafts,), GGMLType.I64)
        return cls(batch, read, parts, replayed, drafts, kept)

    @property
    def tensors(self) -> list[Tensor]:
        """Its inputs, in the order of their data."""
        every = (self.read, self.written, self.replayed, self.drafts, self.kept)
        return [each for each in every if each is not None]


@dataclass(frozen=True, slots=True)
class StateLayer:
    """One layer's states in one graph: a `LayerCache`."""

    context: Context
    states: Tensors
    shape: StateShape
    parts: Sequence[_BuiltPart]
    kept: Tensors

    def update(self, keys: Tensor | None, values: Tensor | None) -> History:  # noqa: ARG002
        """Raise ShapeError: there are no keys and values here."""
        raise ShapeError("a layer with states has no keys and values")

    def advance(self, inputs: Tensors, advance: Advance) -> Tensor:
        """Compute the tokens of each sequence, from the state before them to the one after."""
        outputs: Tensor | None = None
        states: States = ()
        row = 0
        for part in self.parts:
            if isinstance(part.batch, RaggedBatch):
                flat, states = self._advance_ragged(part, part.batch, inputs, row, advance), ()
            else:
                flat, states = self._advance_equal(part, part.batch, inputs, row, advance, states)
            outputs = outputs.concat(flat, 0) if outputs else flat
            row += flat.shape[0]
        if outputs is None:
            raise ShapeError("a batch without tokens has no states")
        return outputs

    def _advance_equal(
        self,
        part: _BuiltPart,
        batch: MicroBatch,
        inputs: Tensors,
        row: int,
        advance: Advance,
        last: States,
    ) -> tuple[Tensor, States]:
        """Compute a micro-batch; return its outputs, and its states for one that continues."""
        before = [each.after for each in last] if batch.continues else [None] * len(last)
        states = tuple(
            StateRows(stored, shape, part.read, part.written, each)
            for stored, shape, each in zip_longest(self.states, self.shape.shapes, before)
        )
        output = advance(tuple(_rows(each, row, batch) for each in inputs), states)
        return output.reshape(batch.sequences * batch.tokens, -1), states

    def _advance_ragged(
        self, part: _BuiltPart, batch: RaggedBatch, inputs: Tensors, row: int, advance: Advance
    ) -> Tensor:
        """Compute a ragged batch after what it replays; keep the inputs of its drafts."""
        every: list[Tensor] = []
        for given, kept in zip(inputs, self.kept, strict=True):
            own = given.strided(
                (batch.tokens, given.shape[1]), given.strides[:1], row * given.strides[0]
            )
            joined = own if part.replayed is None else kept.rows(part.replayed).concat(own, 0)
            if part.drafts is not None and part.kept is not None:
                self.context.forward(kept.set_rows(own.rows(part.drafts), part.kept))
            step = joined.strides[0]
            every.append(joined.strided((1, *joined.shape), (joined.shape[0] * step, step)))
        states = tuple(
            StateRows(stored, shape, part.read, part.written)
            for stored, shape in zip(self.states, self.shape.shapes, strict=True)
        )
        output = advance(tuple(every), states).reshape(batch.replayed + batch.tokens, -1)
        step = output.strides[0]
        return output.strided((batch.tokens, output.shape[1]), (step,), batch.replayed * step)


def _rows(tensor: Tensor, start: int, batch: MicroBatch) -> Tensor:
    """View rows of (tokens, features) as (sequences, tokens, features)."""
    shape = (batch.sequences, batch.tokens, tensor.shape[1])
    step = tensor.strides[0]
    return tensor.strided(shape, (batch.tokens * step, step), start * step)


def _tokens_of(batch: MicroBatch | RaggedBatch) -> int:
    return batch.tokens * (batch.sequences if isinstance(batch, MicroBatch) else 1)


def _halves(length: int) -> list[int]:
    return [length - length // 2, length // 2] if length > 1 else [length]
