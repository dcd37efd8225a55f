"""Steering: the changes of values at points, for each row of a batch those of its own request.

Each operation is affine, so all that a request does at one point are one map of the rows x:

    x -> scale · x + bias + sum over r of (x · directions[r]) outputs[r]

(added vectors: arXiv:2308.10248; removed directions: arXiv:2406.11717). The graph has the maps of
all requests of the batch in tables, first of all the map that changes nothing, and each row has the
number of its own. That one is x · 1 + 0 + 0: the rows of other requests keep their values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tampu.ml import Context, GGMLType, Tensor
from tampu.nn.points import Point

Floats: TypeAlias = npt.NDArray[np.float64]
Table: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class SteeringMap:
    """What one request does with the values at one point.

    Attributes:
        scale: multiplies them.
        bias: (features,), is added.
        directions: (r, features): the dot product of the values with one of these rows, of any
            length, multiplies the same row of `outputs`.
        outputs: (r, features): these rows, multiplied, are added.
    """

    scale: float
    bias: Floats
    directions: Floats
    outputs: Floats

    @classmethod
    def identity(cls, features: int) -> SteeringMap:
        """Return the map that changes nothing."""
        none = np.empty((0, features))
        return cls(1.0, np.zeros(features), none, none)

    @property
    def fits(self) -> bool:
        """Whether all its numbers are within F32."""
        limit = float(np.finfo(np.float32).max)
        arrays = (self.bias, self.directions, self.outputs)
        return abs(self.scale) <= limit and all((abs(each) <= limit).all() for each in arrays)

    def then_add(self, vector: Floats) -> SteeringMap:
        """Return this map, and the addition of a vector after it."""
        return SteeringMap(self.scale, self.bias + vector, self.directions, self.outputs)

    def then_scale(self, factor: float) -> SteeringMap:
        """Return this map, and the multiplication by a number after it."""
        return SteeringMap(
            self.scale * factor, self.bias * factor, self.directions, self.outputs * factor
        )

    def then_ablate(self, vector: Floats, strength: float) -> SteeringMap:
        """Return this map, and the removal of a direction after it."""
        unit = vector / np.linalg.norm(vector)
        outputs = self.outputs - strength * np.outer(self.outputs @ unit, unit)
        return SteeringMap(
            self.scale,
            self.bias - strength * (self.bias @ unit) * unit,
            np.vstack([self.directions, unit]),
            np.vstack([outputs, -strength * self.scale * unit]),
        )


@dataclass(frozen=True, slots=True)
class SequenceSteering:
    """What one request changes.

    Attributes:
        maps: by point.
        digest: of all of it; what has the same digest is the same.
    """

    maps: Mapping[Point, SteeringMap] = field(compare=False)
    digest: bytes

    @classmethod
    def of(cls, maps: Mapping[Point, SteeringMap]) -> SequenceSteering:
        """Return these maps with their digest."""
        content = hashlib.sha256()
        for point, each in sorted(maps.items(), key=lambda item: item[0]):
            content.update(f"{point} {each.scale!r} {each.directions.shape}".encode())
            for array in (each.bias, each.directions, each.outputs):
                content.update(array.tobytes())
        return cls(maps, content.digest())


# -- of a step -----------------------------------------------------------------------------------


class SteeredPoint(NamedTuple):
    """What graphs have at one point.

    Attributes:
        point: where.
        features: of its values.
        directions: of each map, at most.
        is_scaled: whether any map multiplies the values.
    """

    point: Point
    features: int
    directions: int
    is_scaled: bool


class SteeringShape(NamedTuple):
    """What steps must have in common to be steered by the same graph.

    Attributes:
        points: that any request changes.
        maps: of each: a power of two, so that few graphs differ by it.
    """

    points: tuple[SteeredPoint, ...] = ()
    maps: int = 0


UNSTEERED = SteeringShape()


@dataclass(frozen=True, slots=True)
class SteeringTables:
    """The maps of several requests, as graphs read them; the first of each changes nothing.

    Attributes:
        shape: of the graph.
        places: of each request's maps in the tables.
        arrays: F32, read-only: of each point the biases (maps, features); if any map multiplies,
            the factors (maps, 1); if any has directions, (maps · directions, features), and their
            outputs (features, maps · directions).
    """

    shape: SteeringShape
    places: Mapping[SequenceSteering, int]
    arrays: tuple[Table, ...]

    @classmethod
    def of(cls, requests: Sequence[SequenceSteering]) -> SteeringTables:
        """Return the tables of these requests, each another one."""
        count = 1 << len(requests).bit_length()  # with the map that changes nothing
        points: list[SteeredPoint] = []
        arrays: list[Table] = []
        for point in sorted({point for each in requests for point in each.maps}):
            maps = [each.maps.get(point) for each in requests]
            known = [each for each in maps if each]
            steered = SteeredPoint(
                point,
                len(known[0].bias),
                max(len(each.directions) for each in known),
                any(each.scale != 1.0 for each in known),
            )
            points.append(steered)
            arrays += _arrays(steered, count, maps)
        for array in arrays:
            array.flags.writeable = False
        places = {each: place for place, each in enumerate(requests, 1)}
        return cls(SteeringShape(tuple(points), count), places, tuple(arrays))


def _arrays(steered: SteeredPoint, count: int, maps: Sequence[SteeringMap | None]) -> list[Table]:
    """Return the tables of one point; see `SteeringTables.arrays`."""
    features, directions = steered.features, steered.directions
    biases = np.zeros((count, features), np.float32)
    factors = np.ones((count, 1), np.float32)
    inputs = np.zeros((count, directions, features), np.float32)
    outputs = np.zeros((count, directions, features), np.float32)
    for place, each in enumerate(maps, 1):
        if each:
            biases[place], factors[place] = each.bias, each.scale
            inputs[place, : len(each.directions)] = each.directions
            outputs[place, : len(each.outputs)] = each.outputs
    found = [biases, factors] if steered.is_scaled else [biases]
    if directions:
        found += [inputs.reshape(-1, features)]
        found += [np.ascontiguousarray(outputs.reshape(-1, features).T)]
    return found


@dataclass(frozen=True, slots=True)
class StepSteering:
    """How the rows of a step are steered.

    Attributes:
        chosen: I32, (tokens,): the place of each token's maps in the tables; 0: unchanged.
        tables: of all requests of the step.
    """

    chosen: npt.NDArray[np.int32]
    tables: SteeringTables

    def data(self, outputs: npt.NDArray[np.int32]) -> list[npt.NDArray[np.generic]]:
        """Return the data of `GraphSteering.inputs`; `outputs` are the rows that have one."""
        shape = self.tables.shape
        found: list[npt.NDArray[np.generic]] = [*self.tables.arrays]
        for chosen in (self.chosen, self.chosen[outputs]):
            found.append(chosen)
            if _has_directions(shape):
                found.append(np.eye(shape.maps, dtype=np.float32)[chosen][:, :, None])
        return found


class SteeringPlanner:
    """Plans how steps are steered; the tables of the last step are kept for the next one."""

    def __init__(self) -> None:
        self._requests: tuple[SequenceSteering, ...] = ()
        self._tables = SteeringTables.of(())

    def plan(self, parts: Sequence[tuple[SequenceSteering | None, int]]) -> StepSteering | None:
        """Return how a batch is steered; None: not at all.

        Args:
            parts: the steering of each sequence, and the number of its tokens.
        """
        requests = tuple(dict.fromkeys(steering for steering, _ in parts if steering))
        if not requests:
            return None
        if requests != self._requests:
            self._requests, self._tables = requests, SteeringTables.of(requests)
        places = [self._tables.places[each] if each else 0 for each, _ in parts]
        chosen = np.repeat(np.array(places, np.int32), [count for _, count in parts])
        return StepSteering(chosen, self._tables)


# -- in a graph ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Rows:
    """Which map each row has.

    Attributes:
        chosen: I32, (rows,): its place.
        mask: F32, (rows, maps, 1): 1 at that place; None: no map has directions.
    """

    chosen: Tensor
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class _Maps:
    """The tables of one point, as in `SteeringTables.arrays`."""

    biases: Tensor
    factors: Tensor | None
    directions: Tensor | None
    outputs: Tensor | None


class GraphSteering:
    """The part of a graph that changes values at points.

    Attributes:
        inputs: in the order of `StepSteering.data`.
        points: where.
    """

    def __init__(self, context: Context, shape: SteeringShape, tokens: int, outputs: int) -> None:
        """Add its inputs to a graph of so many tokens and outputs."""
        self.inputs: list[Tensor] = []
        self._context = context
        self._maps = {each.point: self._tables(each, shape.maps) for each in shape.points}
        self.points = frozenset(self._maps)
        every, some = (self._chosen(count, shape) for count in (tokens, outputs))
        self._rows = {outputs: some, tokens: every}  # all rows are outputs in order, or fewer are

    def change(self, point: Point, x: Tensor) -> Tensor:
        """Return what takes the place of values (tokens or outputs, features) at a point."""
        maps, rows = self._maps[point], self._rows[x.shape[0]]
        y = x * maps.factors.rows(rows.chosen) if maps.factors else x
        if maps.directions and maps.outputs and rows.mask:
            parts = x.linear(maps.directions, full_precision=True)
            own = parts.reshape(x.shape[0], rows.mask.shape[1], -1) * rows.mask
            y = y + own.reshape(*parts.shape).linear(maps.outputs, full_precision=True)
        return y + maps.biases.rows(rows.chosen)

    def _tables(self, each: SteeredPoint, maps: int) -> _Maps:
        features, rows = each.features, maps * each.directions
        return _Maps(
            self._table("biases", maps, features),
            self._table("factors", maps, 1) if each.is_scaled else None,
            self._table("directions", rows, features) if rows else None,
            self._table("outputs", features, rows) if rows else None,
        )

    def _table(self, name: str, *shape: int) -> Tensor:
        table = self._context.input(f"steering_{name}", shape, GGMLType.F32, is_persistent=True)
        self.inputs.append(table)
        return table

    def _chosen(self, count: int, shape: SteeringShape) -> _Rows:
        chosen = self._context.input("steering", (count,), GGMLType.I32)
        self.inputs.append(chosen)
        if not _has_directions(shape):
            return _Rows(chosen, None)
        mask = self._context.input("steering_mask", (count, shape.maps, 1), GGMLType.F32)
        self.inputs.append(mask)
        return _Rows(chosen, mask)


def _has_directions(shape: SteeringShape) -> bool:
    return any(each.directions for each in shape.points)
