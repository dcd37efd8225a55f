"""Captured values: what a request asks for, checked against its model, and what was captured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import numpy as np
from msgspec.structs import replace

from tampu.engine.points import find_points, short
from tampu.engine.prompts import Prompt
from tampu.engine.request import Computation, Result
from tampu.engine.safetensors_data import decode, encode
from tampu.errors import OutOfMemoryError, RequestError
from tampu.ml import Backend
from tampu.ml.atomic_file import atomic_file, translate_os_errors
from tampu.nn.points import ATTENTIONS, MEDIA, ROUTER_INDICES, STATES, Point
from tampu.runner.capture import Positions, Rows, SequenceCapture, Values
from tampu.runner.capture_options import CaptureOptions
from tampu.runner.events import Done, Event, Usage
from tampu.runner.layout import InputLayout
from tampu.runner.sequence import Sink

_STEP_BYTES = 256 << 20  # that one step captures, at most; a prompt is computed in pieces
_COPIES = 3  # of what is captured: rows of steps, the arrays of a point, and those of all

NO_MEDIA: Mapping[Point, int] = MappingProxyType({})

Take: TypeAlias = Callable[[Positions, Mapping[Point, Values]], None]


@dataclass(frozen=True, eq=False)
class Captured:
    """Captured values: `captured["hidden_states"][3]` is F32, (positions, features).

    Router indices are I32, (positions, experts of each token); attention weights are F32, (heads,
    positions, keys), heads in the order in which they were asked for, with all tokens of the
    prompt as keys, and those of the answer that were captured. Columns of tokens that a token does
    not attend to are 0. States are F32, (positions, *shape), as the layer has them.

    Attributes:
        positions: I32, (n,): of the tokens, in the order of the rows.
        points: by the name of the point and the layer.
    """

    positions: Positions
    points: Mapping[str, Mapping[int, Values]]

    def __getitem__(self, name: str) -> Mapping[int, Values]:
        return self.points[name]

    def encoded(self) -> bytes:
        """Return it as a safetensors file: `positions`, and `hidden_states.3` and so on."""
        arrays = {f"{name}.{n}": rows for name, of in self.points.items() for n, rows in of.items()}
        return encode({"positions": self.positions, **arrays}, {})

    @classmethod
    def decoded(cls, data: bytes) -> Captured:
        """Return what `encoded` has made such bytes of; the arrays share their memory."""
        arrays, _ = decode(data)
        positions = np.asarray(arrays.pop("positions"), np.int32)
        values: dict[str, dict[int, Values]] = {}
        for key, each in arrays.items():
            name, _, layer = key.rpartition(".")
            values.setdefault(name, {})[int(layer)] = each
        return cls(positions, values)

    def save(self, path: str | Path) -> None:
        """Write it to a safetensors file, with the tensors of `encoded`.

        Raises:
            StoreError: if it cannot be written.
        """
        with translate_os_errors(path), atomic_file(Path(path)) as file:
            file.write(self.encoded())


class CapturedEmbeddings(NamedTuple):
    """Embeddings of texts, and values inside the model while it read them.

    Attributes:
        vectors: as `Engine.embed` returns them.
        captured: of each text.
    """

    vectors: Rows
    captured: tuple[Captured, ...]


class CapturedValues(Result, frozen=True):
    """Captured values, as `Captured.encoded` returns them, and the tokens of the prompt."""

    data: bytes
    tokens: int

    @property
    def usage(self) -> Usage:
        """The tokens that it took."""
        return Usage(prompt_tokens=self.tokens)

    def captured(self) -> Captured:
        """Return the values."""
        return Captured.decoded(self.data)


class Capture(Computation[CapturedValues], frozen=True):
    """Capture values inside the model while it reads a prompt.

    Attributes:
        prompt: of any kind.
        options: which values.
    """

    prompt: Prompt
    options: CaptureOptions

    @property
    def contents(self) -> Sequence[Prompt]:
        """The prompts that it has."""
        return (self.prompt,)


@dataclass(frozen=True, slots=True)
class CapturePlan:
    """What a request captures, checked against its model and its prompt.

    Attributes:
        points: in the order in which they are returned.
        features: of each; of attention weights, how many heads are captured.
        heads: whose attention weights are captured, in the order of the values; None: all.
        positions: I32, (n,), ascending; None: all.
        most: how many positions there can be.
        keys: the columns of attention weights, at most: tokens of the prompt and the answer.
        keeps: the columns that there are at least: tokens of the prompt.
        media_bytes: the size of the rows of pictures and sounds.
    """

    points: tuple[Point, ...]
    features: tuple[int, ...]
    heads: tuple[int, ...] | None
    positions: Positions | None
    most: int
    keys: int
    keeps: int
    media_bytes: int = 0

    @property
    def token_bytes(self) -> int:
        """The size of what is captured of one token, at most."""
        each = zip(self.points, self.features, strict=True)
        own = (pair for pair in each if pair[0].name not in MEDIA)
        return 4 * sum(width * (self.keys if _is_weights(point) else 1) for point, width in own)

    @property
    def size_bytes(self) -> int:
        """The size of all of it, at most."""
        return self.token_bytes * self.most + self.media_bytes

    @property
    def needed_bytes(self) -> int:
        """The memory that all of it takes, at most."""
        return _COPIES * self.size_bytes

    def check_memory(self, free: int | None = None) -> None:
        """Check that all of it fits into memory.

        Raises:
            OutOfMemoryError: with the numbers.
        """
        free = Backend.available_memory() if free is None else free
        if (needed := self.needed_bytes) > free:
            fewer = "points, layers"
            fewer += ", heads" if any(map(_is_weights, self.points)) else ""
            raise OutOfMemoryError(
                f"capture: {self.most} positions of {len(self.points)} points need "
                f"{needed / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free: capture fewer "
                f"{fewer} or positions, or write them to a file (capture_file)"
            )

    def begin(self, take: Take) -> SequenceCapture:
        """Return what a sequence has of it; the function gets the values."""
        chunk = max(_STEP_BYTES // max(self.token_bytes, 1), 1)
        media = frozenset(point for point in self.points if point.name in MEDIA)
        points = tuple(point for point in self.points if point not in media)
        return SequenceCapture(points, self.positions, take, chunk, self.heads, media)


def _is_weights(point: Point) -> bool:
    return point.name == ATTENTIONS


def _is_state(point: Point) -> bool:
    return point.name in STATES


def check_states(capture: SequenceCapture, layout: InputLayout) -> None:
    """Check that a step can end at each position after which states are captured.

    Raises:
        RequestError: naming a position that is among inputs computed together, as of an image.
    """
    if not capture.wants_states or capture.positions is None:
        return
    for end in (int(each) + 1 for each in capture.positions):
        if (last := layout.group_end(end) - 1) >= end:
            reason = f"it is computed together with those up to {last}"
            raise RequestError(f"capture: no state is kept after position {end - 1}: {reason}")


def data_type(point: Point) -> type[np.float32 | np.int32]:
    """Return the type of the values at a point."""
    return np.int32 if point.name == ROUTER_INDICES else np.float32


def plan_capture(
    options: CaptureOptions,
    known: Mapping[Point, int],
    prompt: int,
    most: int,
    rows: Mapping[Point, int] = NO_MEDIA,
) -> CapturePlan:
    """Return what a request captures.

    Args:
        options: what it asks for.
        known: the points of the model, with the features of each.
        prompt: how many tokens its prompt has.
        most: how many tokens the prompt and the answer can have together.
        rows: how many each picture and each piece of a sound of the prompt has.

    Raises:
        RequestError: naming a point, a layer or a head that the model does not have, a position
            outside, or the size if it is over the limit.
    """
    named = (_find(each, options, known) for each in options.points)
    points = tuple(dict.fromkeys(point for each in named for point in each))
    heads = _heads(options, points, known)
    if options.positions is None and any(map(_is_state, points)):
        first = next(filter(_is_state, points))
        reason = f"{first} needs {options.prefix}positions, such as -1: a step ends at each"
        raise RequestError(f"{options.field}: {reason}")
    widths = (len(heads) if heads and _is_weights(each) else known[each] for each in points)
    positions = _positions(options, prompt, most)
    count = most if positions is None else len(positions)
    media = sum(4 * rows.get(point, 0) * known[point] for point in points)
    plan = CapturePlan(points, tuple(widths), heads, positions, count, most, prompt, media)
    check_size(options, [plan])
    return plan


def check_size(options: CaptureOptions, plans: Sequence[CapturePlan]) -> None:
    """Check that what one request captures, of one or several prompts, is within its limit.

    Raises:
        RequestError: with the size and the limit.
    """
    size = sum(plan.size_bytes for plan in plans)
    if options.max_bytes is not None and size > options.max_bytes:
        count = sum(plan.most for plan in plans)
        weights = any(_is_weights(point) for plan in plans for point in plan.points)
        fewer = f", {options.prefix}heads" if weights else ""
        raise RequestError(
            f"{options.field}: {count} positions of {len(plans[0].points)} points can have {size} "
            f"bytes, and the limit is {options.max_bytes}: ask for fewer points{fewer} "
            f"or {options.prefix}positions, or for a shorter answer"
        )


def _find(name: str, options: CaptureOptions, known: Mapping[Point, int]) -> list[Point]:
    """Return the points that a name stands for; `layers` are not numbers of pictures."""
    layers = None if name in MEDIA else options.layers
    return find_points(options.field, name, layers, known)


def _heads(
    options: CaptureOptions, points: Sequence[Point], known: Mapping[Point, int]
) -> tuple[int, ...] | None:
    if options.heads is None:
        return None
    seeing = [point for point in points if _is_weights(point)]
    what = options.begin("heads")
    if not seeing:
        raise RequestError(f"{what} are those of {ATTENTIONS}, which are not captured")
    for point in seeing:
        for head in options.heads:
            if not 0 <= head < known[point]:
                there = f"{point} has heads 0 to {known[point] - 1}"
                raise RequestError(f"{what}: there is no head {short(head)}: {there}")
    return options.heads


def _positions(options: CaptureOptions, prompt: int, most: int) -> Positions | None:
    if options.positions is None:
        return None
    found = [each + prompt if each < 0 else each for each in options.positions]
    for each, given in zip(found, options.positions, strict=True):
        if not 0 <= each < most:
            where = f"a prompt of {prompt} tokens"
            where += f" and an answer of at most {most - prompt}" if most > prompt else ""
            message = f"position {short(given)} is outside of {where}"
            raise RequestError(f"{options.begin('positions')}: {message}")
    return np.unique(np.asarray(found, np.int32))


@dataclass(slots=True)
class CaptureStore:
    """Keeps in memory what one sequence captures."""

    plan: CapturePlan
    _positions: list[Positions] = field(default_factory=list)
    _values: dict[Point, list[Values]] = field(default_factory=dict)

    @property
    def capture(self) -> SequenceCapture:
        """What a sequence has of it."""
        return self.plan.begin(self.take)

    def take(self, positions: Positions, values: Mapping[Point, Values]) -> None:
        """Take the values of some tokens; see `SequenceCapture.take`."""
        self._positions.append(positions)
        for point, each in values.items():
            self._values.setdefault(point, []).append(each)

    def result(self) -> Captured:
        """Return all of it."""
        positions = np.concatenate([np.empty(0, np.int32), *self._positions])
        values: dict[str, dict[int, Values]] = {}
        for point, features in zip(self.plan.points, self.plan.features, strict=True):
            parts = self._values.pop(point, [])
            if _is_weights(point):
                end = int(positions[-1]) + 1 if len(positions) else 0
                found = _joined_weights(parts, features, max(end, self.plan.keeps))
            else:
                empty = np.empty((0, features), data_type(point))
                found = np.concatenate([each for each in parts if len(each)] or [empty])
                if point.name in MEDIA:  # what is behind the embedding is for single layers
                    found = np.ascontiguousarray(found[:, :features])
            values.setdefault(point.name, {})[point.layer] = found
        return Captured(positions, values)

    def sink(self, sink: Sink) -> Sink:
        """Return a sink whose last event has what was captured."""

        def receive(event: Event) -> None:
            if isinstance(event, Done):
                event = replace(event, captured=self.result().encoded())
            sink(event)

        return receive


def _joined_weights(parts: Sequence[Values], heads: int, keys: int) -> Rows:
    """Return attention weights (heads, positions, keys) of the parts of a sequence.

    The columns after those that a part has are later tokens, to which it does not attend.
    """
    joined = np.zeros((heads, sum(part.shape[1] for part in parts), keys), np.float32)
    row = 0
    for part in parts:
        count, columns = part.shape[1], min(part.shape[2], keys)
        joined[:, row : row + count, :columns] = part[..., :columns]
        row += count
    return joined
