"""Lazy tensors: stacks and views of stored tensors, read only when they are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from tampu.convert.checkpoint import Stored, StoredTensor
from tampu.errors import ModelFileError

_COMPUTED = ""  # in place of a stored type: there are no bytes to copy

View: TypeAlias = Callable[[Stored], Stored]
"""Returns a slice, transpose or reshape of an array."""


@dataclass(frozen=True, slots=True)
class StackedTensor(StoredTensor):
    """Several tensors of one shape, stacked along a new slowest dimension."""

    members: tuple[StoredTensor, ...]

    @classmethod
    def of(cls, members: Sequence[StoredTensor]) -> StackedTensor:
        """Return the stack of these tensors.

        Raises:
            ModelFileError: if they differ in shape or type.
        """
        first = members[0]
        for member in members:
            if (member.shape, member.dtype) != (first.shape, first.dtype):
                raise ModelFileError(member.name, f"differs in shape or type from {first.name}")
        size = sum(member.size_bytes for member in members)
        shape = (len(members), *first.shape)
        return cls(first.name, _COMPUTED, shape, first.path, 0, size, tuple(members))

    def read(self) -> Stored:
        """Return the stacked elements."""
        return np.stack([member.read() for member in self.members])


@dataclass(frozen=True, slots=True)
class TensorView(StoredTensor):
    """A slice, transpose or reshape of another tensor."""

    whole: StoredTensor
    view: View

    @classmethod
    def of(cls, whole: StoredTensor, view: View) -> TensorView:
        """Return the view of a tensor.

        Raises:
            ModelFileError: if the tensor's shape does not fit the view.
        """
        try:
            shape = view(whole.read()).shape
        except (ValueError, IndexError) as error:
            raise ModelFileError(whole.name, f"cannot be split: {whole.shape}") from error
        size = int(np.prod(shape)) * whole.size_bytes // max(1, int(np.prod(whole.shape)))
        return cls(whole.name, _COMPUTED, shape, whole.path, 0, size, whole, view)

    def read(self) -> Stored:
        """Return the elements as a contiguous array."""
        return np.ascontiguousarray(self.view(self.whole.read()))


def nth_part(index: int, *, axis: int, count: int = 2) -> View:
    """Return the view of part `index` of `count` equal parts along an axis."""

    def view(values: Stored) -> Stored:
        return np.split(values, count, axis)[index]

    return view


def transposed(view: View | None = None) -> View:
    """Return a view with the last two dimensions swapped, after another view if one is given."""

    def swap(values: Stored) -> Stored:
        return (view(values) if view else values).swapaxes(-1, -2)

    return swap


def strided(first: int, *, axis: int) -> View:
    """Return the view of every second entry along an axis, starting with `first`."""

    def view(values: Stored) -> Stored:
        places = [slice(None)] * values.ndim
        places[axis] = slice(first, None, 2)
        return values[tuple(places)]

    return view
