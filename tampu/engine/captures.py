"""Captured values: what a request asks for, checked against its model, and what was captured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
from msgspec.structs import replace

from tampu.engine.points import find_points, short
from tampu.engine.prompts import Prompt
from tampu.engine.request import Computation, Result
from tampu.engine.safetensors_data import decode, encode
from tampu.errors import OutOfMemoryError, RequestError
from tampu.ml import Backend
from tampu.ml.atomic_file import atomic_file, translate_os_errors
from tampu.nn.points import Point
from tampu.runner.capture import Positions, Rows, SequenceCapture
from tampu.runner.capture_options import CaptureOptions
from tampu.runner.events import Done, Event, Usage
from tampu.runner.sequence import Sink

_STEP_BYTES = 256 << 20  # that one step captures, at most; a prompt is computed in pieces
_COPIES = 3  # of what is captured: rows of steps, the arrays of a point, and those of all

Take: TypeAlias = Callable[[Positions, Mapping[Point, Rows]], None]


@dataclass(frozen=True, eq=False)
class Captured:
    """Captured values: `captured["hidden_states"][3]` is F32, (positions, features).

    Attributes:
        positions: I32, (n,): of the tokens, in the order of the rows.
        points: by the name of the point and the layer.
    """

    positions: Positions
    points: Mapping[str, Mapping[int, Rows]]

    def __getitem__(self, name: str) -> Mapping[int, Rows]:
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
        values: dict[str, dict[int, Rows]] = {}
        for key, rows in arrays.items():
            name, _, layer = key.rpartition(".")
            values.setdefault(name, {})[int(layer)] = np.asarray(rows, np.float32)
        return cls(positions, values)

    def save(self, path: str | Path) -> None:
        """Write it to a safetensors file, with the tensors of `encoded`.

        Raises:
            StoreError: if it cannot be written.
        """
        with translate_os_errors(path), atomic_file(Path(path)) as file:
            file.write(self.encoded())


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
        features: of each.
        positions: I32, (n,), ascending; None: all.
        most: how many positions there can be.
    """

    points: tuple[Point, ...]
    features: tuple[int, ...]
    positions: Positions | None
    most: int

    @property
    def token_bytes(self) -> int:
        """The size of what is captured of one token."""
        return 4 * sum(self.features)

    @property
    def size_bytes(self) -> int:
        """The size of all of it, at most."""
        return self.token_bytes * self.most

    def check_memory(self, free: int | None = None) -> None:
        """Check that all of it fits into memory.

        Raises:
            OutOfMemoryError: with the numbers.
        """
        free = Backend.available_memory() if free is None else free
        needed = _COPIES * self.size_bytes
        if needed > free:
            raise OutOfMemoryError(
                f"capture: {self.most} positions of {len(self.points)} points need "
                f"{needed / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free: capture fewer "
                "points, layers or positions, or write them to a file (capture_file)"
            )

    def begin(self, take: Take) -> SequenceCapture:
        """Return what a sequence has of it; the function gets the values."""
        chunk = max(_STEP_BYTES // self.token_bytes, 1)
        return SequenceCapture(self.points, self.positions, take, chunk)


def plan_capture(
    options: CaptureOptions, known: Mapping[Point, int], prompt: int, most: int
) -> CapturePlan:
    """Return what a request captures.

    Args:
        options: what it asks for.
        known: the points of the model, with the features of each.
        prompt: how many tokens its prompt has.
        most: how many tokens the prompt and the answer can have together.

    Raises:
        RequestError: naming a point or a layer that the model does not have, a position outside,
            or the size if it is over the limit.
    """
    named = (find_points(options.field, each, options.layers, known) for each in options.points)
    points = tuple(dict.fromkeys(point for each in named for point in each))
    positions = _positions(options, prompt, most)
    count = most if positions is None else len(positions)
    plan = CapturePlan(points, tuple(known[point] for point in points), positions, count)
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
        raise RequestError(
            f"{options.field}: {count} positions of {len(plans[0].points)} points can have {size} "
            f"bytes, and the limit is {options.max_bytes}: ask for fewer points or positions, or "
            "for a shorter answer"
        )


def _positions(options: CaptureOptions, prompt: int, most: int) -> Positions | None:
    if options.positions is None:
        return None
    found = [each + prompt if each < 0 else each for each in options.positions]
    for each, given in zip(found, options.positions, strict=True):
        if not 0 <= each < most:
            where = f"a prompt of {prompt} tokens"
            where += f" and an answer of at most {most - prompt}" if most > prompt else ""
            message = f"{options.field}: position {short(given)} is outside of {where}"
            raise RequestError(message)
    return np.unique(np.asarray(found, np.int32))


@dataclass(slots=True)
class CaptureStore:
    """Keeps in memory what one sequence captures."""

    plan: CapturePlan
    _positions: list[Positions] = field(default_factory=list)
    _rows: dict[Point, list[Rows]] = field(default_factory=dict)

    @property
    def capture(self) -> SequenceCapture:
        """What a sequence has of it."""
        return self.plan.begin(self.take)

    def take(self, positions: Positions, values: Mapping[Point, Rows]) -> None:
        """Take the values of some tokens, (positions, features) each."""
        self._positions.append(positions)
        for point, rows in values.items():
            self._rows.setdefault(point, []).append(rows)

    def result(self) -> Captured:
        """Return all of it."""
        empty = np.empty(0, np.int32)
        values: dict[str, dict[int, Rows]] = {}
        for point, features in zip(self.plan.points, self.plan.features, strict=True):
            rows = self._rows.pop(point, [np.empty((0, features), np.float32)])
            values.setdefault(point.name, {})[point.layer] = np.concatenate(rows)
        return Captured(np.concatenate([empty, *self._positions]), values)

    def sink(self, sink: Sink) -> Sink:
        """Return a sink whose last event has what was captured."""

        def receive(event: Event) -> None:
            if isinstance(event, Done):
                event = replace(event, captured=self.result().encoded())
            sink(event)

        return receive
