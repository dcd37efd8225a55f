"""The control vectors that a server was started with, and those that a request chooses of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from tampu.engine.control_vector import ControlVector, Layers
from tampu.errors import RequestError, require
from tampu.runner.steering_options import MAX_STRENGTH, Steering
from tampu.store.catalog import Entry


class ChosenControlVector(msgspec.Struct, frozen=True, kw_only=True):
    """A control vector that a request chooses, by its number or its name.

    Attributes:
        id: its number in `/control-vectors`.
        name: its name there.
        scale: multiplies it.
        layers: the first and the last; None: those that the server says.
    """

    id: int | None = None
    name: str | None = None
    scale: float = 1.0
    layers: tuple[int, int] | None = None


ControlVectorScales: TypeAlias = list[ChosenControlVector] | dict[str, float]
"""The control vectors of a request: a list, or strengths by name."""


@dataclass(frozen=True, slots=True, eq=False)
class ServedControlVector:
    """A control vector of a server.

    Attributes:
        name: that of its file, without the ending.
        vector: its directions.
        scale: its strength in requests that choose none; 0: they do not have it.
        layers: the first and the last layer; None: all that it has.
    """

    name: str
    vector: ControlVector
    scale: float = 1.0
    layers: Layers | None = None

    @property
    def width(self) -> int:
        """The length of its directions."""
        return next(len(direction) for direction in self.vector.directions.values())

    def steering(self, scale: float, layers: Layers | None = None) -> tuple[Steering, ...]:
        """Return its addition to what layers return.

        Raises:
            RequestError: if it has none of the layers.
        """
        return self.vector.steering(scale, layers or self.layers)


class ServedControlVectors:
    """The control vectors of a server by name and number. They do not change while it runs."""

    def __init__(self, vectors: Sequence[ServedControlVector] = ()) -> None:
        """Serve these, whose names differ."""
        self._vectors = tuple(vectors)
        self._by_name = {each.name: each for each in vectors}

    def every(self) -> Sequence[ServedControlVector]:
        """Return all, in the order of their numbers."""
        return self._vectors

    def steering(
        self, entry: Entry, wanted: Sequence[ChosenControlVector] | None
    ) -> tuple[Steering, ...]:
        """Return what a request changes inside its model.

        Args:
            entry: the model.
            wanted: what the request chose; None: the vectors with the strengths that the server was
                started with, if the model generates text and its hidden states have their width.

        Raises:
            RequestError: for one that is not there, that is chosen twice, whose width is another
                one, or a strength or layers that it cannot have.
        """
        info = entry.info
        if wanted is None:
            if "completion" not in info.capabilities:
                return ()
            fitting = [each for each in self._vectors if each.width == info.embedding_length]
            return tuple(
                change for each in fitting if each.scale for change in each.steering(each.scale)
            )
        chosen: dict[str, tuple[Steering, ...]] = {}
        for index, each in enumerate(wanted):
            vector, where = self._find(each, f"control_vectors[{index}]"), vector_name(each)
            require(vector.name not in chosen, f"control_vectors: {where} is there twice")
            if vector.width != info.embedding_length:
                raise RequestError(
                    f"control_vectors: {where} has directions of {vector.width} numbers, and the "
                    f"hidden states of {entry.full_name} have {info.embedding_length}"
                )
            in_range = abs(each.scale) <= MAX_STRENGTH
            limits = f"-{MAX_STRENGTH:g} to {MAX_STRENGTH:g}"
            require(in_range, f"control_vectors: the scale of {where} must be {limits}")
            chosen[vector.name] = vector.steering(each.scale, each.layers)
        return tuple(change for each in chosen.values() for change in each)

    def _find(self, wanted: ChosenControlVector, where: str) -> ServedControlVector:
        is_one = (wanted.id is None) is not (wanted.name is None)
        require(is_one, f"{where} needs id or name")
        found = None
        if wanted.name is not None:
            found = self._by_name.get(wanted.name)
        elif wanted.id is not None and 0 <= wanted.id < len(self._vectors):
            found = self._vectors[wanted.id]
        if found is None:
            have = ", ".join(map(repr, self._by_name)) or "none: tampu serve --control-vector FILE"
            raise RequestError(
                f"{where}: the server has no control vector {vector_name(wanted)} (it has {have})"
            )
        return found


def vector_name(wanted: ChosenControlVector) -> str:
    """Return what messages call a control vector that a request chooses."""
    return repr(wanted.name[:100]) if wanted.name is not None else f"{wanted.id}"


def chosen_control_vectors(
    given: ControlVectorScales | None,
) -> tuple[ChosenControlVector, ...] | None:
    """Return the control vectors of a body; None: those of the server."""
    if isinstance(given, Mapping):
        return tuple(ChosenControlVector(name=name, scale=scale) for name, scale in given.items())
    return None if given is None else tuple(given)
