"""What requests capture of the model while they are computed: points, tokens, and where it goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tampu.kvcache import Cache, SeenTokens, Segment
from tampu.ml import Context, GGMLType, Tensor
from tampu.nn import LayerCache
from tampu.nn.points import ATTENTIONS, IMAGES, MEDIA, SOUNDS, STATES, Point
from tampu.runner.layout import NumberedMedia, PlacedMedia

Rows: TypeAlias = npt.NDArray[np.float32]
Values: TypeAlias = npt.NDArray[Any]
"""F32 or I32, (positions, features).

Attention weights are F32, (heads, positions, keys), states F32, (positions, *shape)."""
Positions: TypeAlias = npt.NDArray[np.int32]

_COLUMNS = 64  # attention weights have a multiple of so many, so that few graphs differ by them


@dataclass(frozen=True, slots=True)
class SequenceCapture:
    """What one request captures.

    Attributes:
        points: of the model, each once.
        positions: I32, (n,), ascending: of the tokens; those that are never computed do not count.
            None: all.
        take: is given the positions of some tokens, in their order, and the values of each point;
            it is called on the run loop's thread. Attention weights have all tokens so far as keys.
        chunk: the maximum number of the prompt's tokens computed at once; None: as many as fit.
        heads: whose attention weights it wants, in the order of the values; None: all.
        media: points of pictures and sounds; `take` is given their rows as they are read.
    """

    points: tuple[Point, ...]
    positions: Positions | None
    take: Callable[[Positions, Mapping[Point, Values]], None]
    chunk: int | None = None
    heads: tuple[int, ...] | None = None
    media: frozenset[Point] = frozenset()

    def wanted(self, start: int, end: int) -> Positions:
        """Return the positions in [start, end) whose tokens are captured."""
        if self.positions is None:
            return np.arange(start, end, dtype=np.int32)
        first, last = np.searchsorted(self.positions, [start, end])
        return self.positions[first:last]

    @property
    def first(self) -> int:
        """The first position that is captured: from there on nothing is taken from the cache."""
        if self.media or self.positions is None or not len(self.positions):
            return 0
        return int(self.positions[0])

    def until_state(self, start: int) -> int | None:
        """Return after how many tokens from `start` on a step must end; None: it need not.

        States are kept only after the last tokens of steps.
        """
        if not self.wants_states or self.positions is None:
            return None
        ahead = self.positions[self.positions >= start]
        return int(ahead[0]) - start + 1 if len(ahead) else None

    @property
    def wants_states(self) -> bool:
        """Whether it captures states of recurrent layers."""
        return any(point.name in STATES for point in self.points)

    @property
    def wants_weights(self) -> bool:
        """Whether it captures attention weights."""
        return any(point.name == ATTENTIONS for point in self.points)


def media_points(media: Iterable[PlacedMedia | NumberedMedia]) -> list[Point]:
    """Return the points of the pictures and the sounds of a prompt, in their order."""
    counts = dict.fromkeys(MEDIA, 0)
    found = []
    for each in media:
        name = SOUNDS if each.item.is_audio else IMAGES
        found.append(Point(name, counts[name]))
        counts[name] += 1
    return found


class SeenShape(NamedTuple):
    """What steps must have in common to see by the same graph what is in the cache.

    Attributes:
        rows: tokens whose attention weights are computed.
        columns: keys of all their sequences together, with padding.
        heads: that are returned, ascending, of layers that have them; None: all.
        states: tokens after which states are returned.
    """

    rows: int = 0
    columns: int = 0
    heads: tuple[int, ...] | None = None
    states: int = 0


NOTHING_SEEN = SeenShape()


class CapturingPart(NamedTuple):
    """The tokens of one sequence that are captured in a step.

    Attributes:
        capture: of the sequence.
        positions: of these tokens, at least one.
        segment: the part of the batch that belongs to the sequence.
        row: of the segment's first token in the batch.
    """

    capture: SequenceCapture
    positions: Positions
    segment: Segment
    row: int

    @property
    def rows(self) -> npt.NDArray[np.int32]:
        """The rows of the tokens in the batch."""
        rows: npt.NDArray[np.int32] = self.positions - self.segment.start + self.row
        return rows

    @property
    def seen(self) -> SeenTokens:
        """The tokens, as the cache sees them."""
        return SeenTokens(self.segment, self.positions)


@dataclass(frozen=True, slots=True)
class CapturedRows:
    """What one step captures.

    Attributes:
        parts: of its sequences.
        points: of all of them.
        rows: I32, (n,): of the tokens in the batch.
        seen: the tokens whose attention weights are captured.
        seen_rows: I32, (m,): their rows in the batch.
        states: the tokens after which states are captured.
        shape: of what is seen in the cache.
    """

    parts: tuple[CapturingPart, ...]
    points: tuple[Point, ...]
    rows: npt.NDArray[np.int32]
    seen: tuple[SeenTokens, ...]
    seen_rows: npt.NDArray[np.int32]
    states: tuple[SeenTokens, ...]
    shape: SeenShape

    @classmethod
    def of(cls, parts: Sequence[CapturingPart]) -> CapturedRows:
        """Return what is captured of these parts of sequences, at least one."""
        points = {point for part in parts for point in part.capture.points}
        seeing = [part for part in parts if part.capture.wants_weights]
        states = tuple(part.seen for part in parts if part.capture.wants_states)
        rows = [part.rows for part in seeing]
        count = sum(len(each.positions) for each in states)
        return cls(
            tuple(parts),
            tuple(sorted(points)),
            np.concatenate([part.rows for part in parts]),
            tuple(part.seen for part in seeing),
            np.concatenate([np.empty(0, np.int32), *rows]),
            states,
            _weights_shape(seeing)._replace(states=count),
        )

    def found(self, values: Sequence[Values]) -> Iterator[dict[Point, Values]]:
        """Yield copies of what each part captures, of the values at `points` of all of them."""
        row = seen_row = column = state = 0
        for part in self.parts:
            count, capture = len(part.positions), part.capture
            found = {}
            for point, each in zip(self.points, values, strict=True):
                if point not in capture.points:
                    continue
                if point.name == ATTENTIONS:
                    own = each[self._heads(capture), seen_row : seen_row + count]
                    found[point] = own[..., column : column + part.segment.end].copy()
                else:
                    first = state if point.name in STATES else row
                    found[point] = each[first : first + count].copy()
            yield found
            row, state = row + count, state + count * capture.wants_states
            if capture.wants_weights:
                seen_row, column = seen_row + count, column + part.segment.end

    def _heads(self, capture: SequenceCapture) -> slice | list[int]:
        """Return which of the heads that graphs return a sequence captures."""
        returned = self.shape.heads
        if capture.heads is None:
            return slice(None)
        return [each if returned is None else returned.index(each) for each in capture.heads]


def _weights_shape(parts: Sequence[CapturingPart]) -> SeenShape:
    if not parts:
        return NOTHING_SEEN
    heads: set[int] | None = set()
    for part in parts:
        wanted = part.capture.heads
        heads = None if heads is None or wanted is None else heads.union(wanted)
    columns = sum(part.segment.end for part in parts)
    return SeenShape(
        sum(len(part.positions) for part in parts),
        -(-columns // _COLUMNS) * _COLUMNS,
        None if heads is None else tuple(sorted(heads)),
    )


class GraphCapture:
    """The part of a graph that returns the values at points.

    Every token of such a graph has an output, so that its last layer computes all of them.

    Attributes:
        found: by point, (rows, features) each; attention weights are (heads, rows, columns), and
            states (rows, *shape).
        every: I32, (tokens,): all rows of the batch.
        seen_rows: I32, (m,): of the tokens whose attention weights are returned; None: of none.
    """

    def __init__(self, context: Context, tokens: int, rows: int, shape: SeenShape) -> None:
        """Add its inputs to a graph.

        Args:
            context: of the graph.
            tokens: of the batch.
            rows: how many are returned.
            shape: of what is seen in the cache.
        """
        self._context = context
        self._shape = shape
        self._rows = context.input("captured_rows", (rows,), GGMLType.I32)
        self.every = context.input("every_row", (tokens,), GGMLType.I32)
        self.seen_rows: Tensor | None = None
        if shape.rows:
            self.seen_rows = context.input("seen_rows", (shape.rows,), GGMLType.I32)
        self.found: dict[Point, Tensor] = {}

    @property
    def inputs(self) -> list[Tensor]:
        """The rows to return, I32, (n,), all rows of the batch, and `seen_rows` if there are."""
        return [self._rows, self.every, *([self.seen_rows] if self.seen_rows else [])]

    def see(self, point: Point, value: Tensor) -> None:
        """Have the graph return the rows of a value (tokens, features), which stays as it is."""
        self.found[point] = self._context.output(value.rows(self._rows))

    def watch(
        self, cache: Cache, layers: Sequence[LayerCache], points: Sequence[Point]
    ) -> tuple[Sequence[LayerCache], list[Tensor]]:
        """Return the caches of layers with which points in them are captured, and their inputs."""
        context, inputs = self._context, list[Tensor]()
        if self.seen_rows is not None:
            see = {each.layer: partial(self._see_weights, each.layer) for each in points
                   if each.name == ATTENTIONS}  # fmt: skip
            layers, inputs = cache.see(context, layers, self.seen_rows, self._shape.columns, see)
        if self._shape.states:
            wanted = {each.layer for each in points if each.name in STATES}
            states = {layer: partial(self._see_state, layer) for layer in wanted}
            layers, more = cache.see_states(context, layers, self._shape.states, states)
            inputs += more
        return layers, inputs

    def _see_state(self, layer: int, number: int, states: Tensor) -> None:
        """Have the graph return states (n, *shape)."""
        self.found[Point(STATES[number], layer)] = self._context.output(states)

    def _see_weights(self, layer: int, weights: Tensor) -> None:
        """Have the graph return attention weights (heads, rows, columns) of the chosen heads."""
        count, heads = weights.shape[0], self._shape.heads
        if heads is not None:
            chosen = np.array([each for each in heads if each < count], np.float32)
            indices = self._context.constant(chosen)
            flat = weights.reshape(count, -1).rows(_whole_numbers(indices, self._context))
            weights = flat.reshape(len(chosen), *weights.shape[1:])
        self.found[Point(ATTENTIONS, layer)] = self._context.output(weights)


def _whole_numbers(values: Tensor, context: Context) -> Tensor:
    """Return a constant (n,) as I32."""
    return values.strided(values.shape, (), context=context).cast(GGMLType.I32)
