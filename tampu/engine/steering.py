"""The steering of a request: as Python's callers give it, and checked against its model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from tampu.engine.control_vector import ControlVector
from tampu.engine.points import find_points
from tampu.errors import RequestError
from tampu.nn.points import ONLY_SEEN, Point
from tampu.runner.steering import SequenceSteering, SteeringMap
from tampu.runner.steering_options import Steering

GivenSteering: TypeAlias = Steering | ControlVector | Sequence[Steering | ControlVector]
"""One change, or several in their order; a control vector is added with a strength of 1."""

MAX_DIRECTIONS = 64
"""The largest number of directions that can be removed at one point.

All of them are computed for every row of a batch."""


def steering_of(given: object) -> tuple[Steering, ...]:
    """Return `GivenSteering` as changes.

    Raises:
        RequestError: for anything else.
    """
    if isinstance(given, Steering):
        return (given,)
    if isinstance(given, ControlVector):
        return given.steering()
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise RequestError(f"steering must be a list of changes, not {type(given).__name__}")
    return tuple(change for each in given for change in _changes_of(each))


def _changes_of(given: object) -> tuple[Steering, ...]:
    if not isinstance(given, Steering | ControlVector):
        wanted = "steering has Steering or ControlVector objects"
        raise RequestError(f"{wanted}, not {type(given).__name__}")
    return steering_of(given)


def plan_steering(given: Iterable[Steering], known: Mapping[Point, int]) -> SequenceSteering | None:
    """Return what a request changes; None: nothing.

    Args:
        given: the changes, in their order.
        known: the points of the model, with the features of each.

    Raises:
        RequestError: naming a point or a layer that the model does not have, a vector of another
            width, too many directions at one point, or numbers beyond F32.
    """
    maps: dict[Point, SteeringMap] = {}
    known = {point: width for point, width in known.items() if point.name not in ONLY_SEEN}
    for change in given:
        for point in find_points("steering", change.point, change.layers, known):
            before = maps.get(point) or SteeringMap.identity(known[point])
            if (after := _changed(before, change, point)) is not before:
                maps[point] = after
    for point, each in maps.items():
        if not each.fits:
            raise RequestError(f"steering: the changes at {point} together are too large")
    return SequenceSteering.of(maps) if maps else None


def _changed(before: SteeringMap, change: Steering, point: Point) -> SteeringMap:
    """Return a map and one change after it; the same map if that changes nothing."""
    strength, vector = change.strength, change.values().astype(np.float64)
    if change.operation == "scale":
        return before if strength == 1.0 else before.then_scale(strength)
    features = len(before.bias)
    if len(vector) != features:
        raise RequestError(
            f"steering: a vector of {len(vector)} numbers does not fit {point}, whose values have "
            f"{features}"
        )
    if not strength:
        return before
    if change.operation == "add":
        return before.then_add(vector * strength)
    if len(before.directions) == MAX_DIRECTIONS:
        raise RequestError(f"steering: more than {MAX_DIRECTIONS} directions at {point}")
    return before.then_ablate(vector, strength)
