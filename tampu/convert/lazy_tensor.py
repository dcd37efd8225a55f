"""Tensors put together of stored ones, or view out of them, and read only when their turn comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from tampu.convert.checkpoint import Stored, StoredTensor
from tampu.errors import ModelFileError

_COMPUTED = ""  # in place of a stored type: the bytes are nowhere to be copied from

View: TypeAlias = Callable[[Stored], Stored]
"""Slices, transposes or reshapes elements, as views."""


@dataclass(frozen=True, slots=True)
class StackedTensor(StoredTensor):
    """Several tensors of one shape, as one with a further, slowest dimension."""

    members: tuple[StoredTensor, ...]

    @classmethod
    def of(cls, members: Sequence[StoredTensor]) -> StackedTensor:
        """Return the stack of these tensors, in this order.

        Raises:
            ModelFileError: if they differ in shape or type.
        """
        first = members[0]
        for member in members:
            if (member.shape, member.dtype) != (first.shape, first.dtype):
                raise ModelFileError(member.name, f"is unlike {first.name}, with which it belongs")
        size = sum(member.size_bytes for member in members)
        shape = (len(members), *first.shape)
        return cls(first.name, _COMPUTED, shape, first.path, 0, size, tuple(members))

    def read(self) -> Stored:
        """Return the elements of all members."""
        return np.stack([member.read() for member in self.members])


@dataclass(frozen=True, slots=True)
class TensorView(StoredTensor):
    """A part of a tensor, or all of it in another order."""

    whole: StoredTensor
    view: View

    @classmethod
    def of(cls, whole: StoredTensor, view: View) -> TensorView:
        """Return what `view` leaves of a tensor.

        Raises:
            ModelFileError: if the tensor does not have the dimensions that `view` wants.
        """
        try:
            shape = view(whole.read()).shape
        except (ValueError, IndexError) as error:
            raise ModelFileError(whole.name, f"cannot be taken apart: {whole.shape}") from error
        size = int(np.prod(shape)) * whole.size_bytes // max(1, int(np.prod(whole.shape)))
        return cls(whole.name, _COMPUTED, shape, whole.path, 0, size, whole, view)

    def read(self) -> Stored:
        """Return the elements, in the order of the shape."""
        return np.ascontiguousarray(self.view(self.whole.read()))


def nth_part(index: int, *, axis: int, count: int = 2) -> View:
    """Return the view of one of `count` equal parts along an axis."""

    def view(values: Stored) -> Stored:
        return np.split(values, count, axis)[index]

    return view


def transposed(view: View | None = None) -> View:
    """Return the view that exchanges the last two dimensions, of what another view leaves."""

    def swap(values: Stored) -> Stored:
        return (view(values) if view else values).swapaxes(-1, -2)

    return swap


def strided(first: int, *, axis: int) -> View:
    """Return the view of every second entry along an axis."""

    def view(values: Stored) -> Stored:
        places = [slice(None)] * values.ndim
        places[axis] = slice(first, None, 2)
        return values[tuple(places)]

    return view
