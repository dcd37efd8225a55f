"""How a request changes values inside the model, as its caller says it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from tampu.errors import RequestError

SteeringOperation: TypeAlias = Literal["add", "ablate", "scale"]
Vector: TypeAlias = Sequence[float] | npt.NDArray[np.floating]

MAX_STRENGTH = 1e6
"""Far more than any model bears; the products of several stay numbers."""


class Steering(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One change of the values x at points of a model, for all tokens of a request.

    Several changes at one point are made in their order.

    Attributes:
        point: the name of a point as in `tampu.nn.points`, such as "layer_outputs"; with a layer,
            as "layer_outputs:12", or at all of `layers`.
        operation: "add": x becomes x + strength · vector. "ablate": the part of x in the direction
            d of the vector is removed, x - strength · (x · d) d with d of length 1; a strength of 1
            removes all of it. "scale": x becomes strength · x.
        vector: little-endian F32, as many as the values have features; empty for "scale".
        strength: see `operation`.
        layers: numbers of layers from 0, those below 0 from the end; None: all that have the point.
    """

    point: str
    operation: SteeringOperation
    vector: bytes = b""
    strength: float = 1.0
    layers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Check what can be checked without a model.

        Raises:
            RequestError: naming what is wrong.
        """
        if not abs(self.strength) <= MAX_STRENGTH:
            raise RequestError(
                f"steering: strength must be -{MAX_STRENGTH:g} to {MAX_STRENGTH:g}, "
                f"not {self.strength:g}"
            )
        if self.layers is not None and not self.layers:
            raise RequestError("steering: layers is empty")
        if (self.operation == "scale") is bool(self.vector):
            wanted = "takes no vector" if self.vector else "needs a vector"
            raise RequestError(f"steering: {self.operation} {wanted}")
        if len(self.vector) % 4:
            raise RequestError("steering: the bytes of a vector are F32, 4 for each number")
        if not np.isfinite(self.values()).all():
            raise RequestError("steering: a vector has NaN or infinity")
        if self.operation == "ablate" and not self.values().any():
            raise RequestError("steering: ablate needs a direction, and the vector is zero")

    def values(self) -> npt.NDArray[np.float32]:
        """Return the vector, F32, (features,)."""
        return np.frombuffer(self.vector, "<f4")

    @classmethod
    def add(
        cls,
        point: str,
        vector: Vector,
        strength: float = 1.0,
        layers: Sequence[int] | None = None,
    ) -> Self:
        """Return the addition of strength · vector, (features,), to the values at a point.

        Raises:
            RequestError: for anything but numbers in one dimension; so do the others.
        """
        return cls._made("add", point, strength, layers, _encoded(vector))

    @classmethod
    def ablate(
        cls,
        point: str,
        direction: Vector,
        strength: float = 1.0,
        layers: Sequence[int] | None = None,
    ) -> Self:
        """Return the removal of a direction, (features,), of any length, from the values."""
        return cls._made("ablate", point, strength, layers, _encoded(direction))

    @classmethod
    def scale(cls, point: str, strength: float, layers: Sequence[int] | None = None) -> Self:
        """Return the multiplication of the values at a point by a number."""
        return cls._made("scale", point, strength, layers, b"")

    @classmethod
    def _made(
        cls,
        operation: SteeringOperation,
        point: str,
        strength: float,
        layers: Sequence[int] | None,
        vector: bytes,
    ) -> Self:
        chosen = None if layers is None else tuple(map(int, layers))
        return cls(
            point=point,
            operation=operation,
            vector=vector,
            strength=float(strength),
            layers=chosen,
        )


def _encoded(vector: Vector) -> bytes:
    try:
        values: npt.NDArray[np.float64] = np.asarray(vector, np.float64)
    except (TypeError, ValueError) as error:
        raise RequestError(f"steering: a vector is a list of numbers: {error}") from None
    if values.ndim != 1:
        raise RequestError(f"steering: a vector has one dimension, not {values.ndim}")
    with np.errstate(over="ignore"):  # the check of the values names it
        return values.astype("<f4").tobytes()
