"""States of recurrent layers: what is left of all that a sequence has read.

A state is a row of a tensor, as a token's keys are; but a batch reads one row of each sequence, the
state behind the token before its own, and writes one for its last token, and one for each of its
checkpoints. It never writes the row that it reads: so a checkpoint is a row that is left alone, and
nothing is copied to keep it or to go back to it.

Tokens of a sequence follow one another, sequences do not: so parts of equal length are computed
together, as a decoding step of many sequences is, and a part is cut in two at a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tampu.errors import ShapeError
from tampu.kvcache.cells import NO_CELL
from tampu.kvcache.masks import Segment, Span
from tampu.kvcache.spec import Reach
from tampu.kvcache.storage import CacheSize, GraphPart, Reading, Run, StepPart
from tampu.ml import Context, GGMLType, Tensor
from tampu.nn import Advance, History, StateShape, Tensors


@dataclass(slots=True)
class _Planned:
    """A run with the rows that it reads (none, if it continues another) and writes."""

    tokens: int
    reads: list[int]
    writes: list[int]

    def takes(self, tokens: int, read: int) -> bool:
        """Whether a part of another sequence can be computed with these."""
        return bool(self.reads) and tokens == self.tokens and read not in self.writes

    @property
    def run(self) -> Run:
        return Run(len(self.writes), self.tokens, continues=not self.reads)


class StateStorage:
    """The states of all recurrent layers; the last row of each is zero, where all begin.

    Attributes:
        reach: of the layers.
        cells: rows of each layer but for the last.
        apart: how many tokens of a prompt lie between checkpoints.
    """

    def __init__(self, context: Context, layers: Mapping[int, StateShape], size: CacheSize) -> None:
        """Allocate all of it.

        Args:
            context: owns it.
            layers: what each needs, by its index in the model.
            size: how much it must hold.

        Raises:
            OutOfMemoryError: if the memory cannot be had.
        """
        self.reach = Reach(is_state=True)
        self.cells = size.states(sum(sum(shape.features) for shape in layers.values()))
        self.apart = size.apart(self.cells)
        self._slots = size.slots
        self._layers = {
            index: tuple(
                context.layer(index).zeros((self.cells + 1, features), GGMLType.F32)
                for features in shape.features
            )
            for index, shape in layers.items()
        }

    def step(self, segments: Sequence[Segment], space: int) -> StepPart:
        """Return the runs that a batch is made of, the rows that they read and those they write."""
        planned = self._planned(segments, space)
        reads = [row for each in planned for row in each.reads]
        writes = [row for each in planned for row in each.writes]
        runs = tuple(each.run for each in planned)
        return StepPart(runs, [np.array(reads, np.int32), np.array(writes, np.int64)])

    def filled(self, tokens: int, cells: int) -> list[Reading]:  # noqa: ARG002
        """Return one sequence as long as the batch, and as many as there are, each cut in two."""
        parts = min(self._slots, tokens // 2)
        lengths = [tokens // parts] * (parts - 1) if parts else []
        lengths.append(tokens - sum(lengths))
        cut = [Run(1, n, each > 0) for total in lengths for each, n in enumerate(_halves(total))]
        return [(Run(1, tokens),), tuple(cut)]

    def begin(self, context: Context, tokens: int, reading: Reading) -> GraphPart:
        """Return the layers as a graph of these runs sees them."""
        if (
            isinstance(reading, Span)
            or sum(run.sequences * run.tokens for run in reading) != tokens
        ):
            raise ShapeError(f"states of {tokens} tokens are not read by {reading}")
        read = sum(run.sequences for run in reading if not run.continues)
        written = sum(run.sequences for run in reading)
        inputs = [
            context.input("states_read", (read,), GGMLType.I32),
            context.input("states_written", (written,), GGMLType.I64),
        ]
        layers = {
            index: StateLayer(context, states, reading, inputs[0], inputs[1])
            for index, states in self._layers.items()
        }
        return GraphPart(layers, inputs)

    def _planned(self, segments: Sequence[Segment], space: int) -> list[_Planned]:
        planned: list[_Planned] = []
        for segment in segments:
            behind = segment.start + np.flatnonzero(segment.cells[space, segment.start :] > NO_CELL)
            written = [int(cell) for cell in segment.cells[space, behind]]
            lengths = [int(each) for each in np.diff(behind, prepend=segment.start - 1)]
            read = int(segment.cells[space, segment.start - 1]) if segment.start else self.cells
            if len(lengths) == 1 and planned and planned[-1].takes(lengths[0], read):
                planned[-1].reads.append(read)
                planned[-1].writes += written
                continue
            planned += [
                _Planned(length, [] if part else [read], [cell])
                for part, (length, cell) in enumerate(zip(lengths, written, strict=True))
            ]
        return planned


class StateLayer:
    """One layer's states in one graph: a `LayerCache`."""

    def __init__(
        self, context: Context, states: Tensors, runs: Sequence[Run], read: Tensor, written: Tensor
    ) -> None:
        self._context = context
        self._states = states
        self._runs = runs
        self._read = read
        self._written = written

    def update(self, keys: Tensor, values: Tensor) -> History:  # noqa: ARG002
        """Refuse: there are no keys and values here."""
        raise ShapeError("a layer that asked for states has no keys and values")

    def advance(self, inputs: Tensors, advance: Advance) -> Tensor:
        """Take each sequence from the state before its tokens to the one behind them."""
        outputs: Tensor | None = None
        states: Tensors = ()
        row = read = written = 0
        for run in self._runs:
            if not run.continues:
                rows = _part(self._read, read, run.sequences)
                states = tuple(state.rows(rows) for state in self._states)
                read += run.sequences
            output, states = advance(tuple(_rows(each, row, run) for each in inputs), states)
            self._store(states, _part(self._written, written, run.sequences))
            flat = output.reshape(run.sequences * run.tokens, -1)
            outputs = outputs.concat(flat, 0) if outputs else flat
            row += run.sequences * run.tokens
            written += run.sequences
        if outputs is None:
            raise ShapeError("a batch without tokens has no states")
        return outputs

    def _store(self, states: Tensors, rows: Tensor) -> None:
        for stored, state in zip(self._states, states, strict=True):
            flat = state.reshape(-1, stored.shape[1])
            self._context.forward(stored.set_rows(flat, rows))


def _rows(tensor: Tensor, start: int, run: Run) -> Tensor:
    """View rows of (tokens, features) as (sequences, tokens, features)."""
    shape = (run.sequences, run.tokens, tensor.shape[1])
    step = tensor.strides[0]
    return tensor.strided(shape, (run.tokens * step, step), start * step)


def _part(indices: Tensor, start: int, count: int) -> Tensor:
    """View some of (n,)."""
    return indices.strided((count,), (), start * indices.type.block_bytes)


def _halves(length: int) -> list[int]:
    return [length - length // 2, length // 2] if length > 1 else [length]
