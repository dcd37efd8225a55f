"""Finds the points of a model that a request names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tampu.errors import RequestError
from tampu.nn.points import NAMES, Point


def find_points(
    what: str, given: str, layers: Sequence[int] | None, known: Mapping[Point, int]
) -> list[Point]:
    """Return the points that a name stands for.

    Args:
        what: the option that names them, for messages.
        given: a point's name, with a layer, as "hidden_states:12", or without.
        layers: of a name without one, those below 0 from the end; None: all.
        known: the points of the model.

    Raises:
        RequestError: naming a point or a layer that the model does not have.
    """
    name, separator, number = given.partition(":")
    there = sorted(point.layer for point in known if point.name == name)
    if not there:
        names = ", ".join(name for name in NAMES if any(point.name == name for point in known))
        raise RequestError(f"{what}: the model has no point {name[:100]!r}; it has {names}")
    wanted: Sequence[int] = there if layers is None else layers
    if separator:
        wanted = [_number(what, given, number)]
    return [Point(name, _layer(what, name, layer, there)) for layer in wanted]


def short(number: int) -> str:
    """Return a number as text; Python refuses to write those of thousands of digits."""
    return str(number) if number.bit_length() < 64 else "of more than 64 bits"


def _number(what: str, given: str, number: str) -> int:
    try:
        return int(number)
    except ValueError:
        message = f"{what}: {given[:100]!r} does not end with a layer's number"
        raise RequestError(message) from None


def _layer(what: str, name: str, layer: int, layers: Sequence[int]) -> int:
    """Return the number from 0 of a layer that has the point."""
    found = layer + layers[-1] + 1 if layer < 0 else layer
    if found in layers:
        return found
    ranges = f"{layers[0]} to {layers[-1]}"
    if len(layers) <= layers[-1] - layers[0]:
        ranges = ", ".join(map(str, layers))
    raise RequestError(f"{what}: layer {short(layer)} has no {name}; layers {ranges} have it")
