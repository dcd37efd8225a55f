"""Lazy tensors: stacks and views of stored tensors, read only when they are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from tampu.convert.checkpoint import Stored, StoredTensor
from tampu.errors import ModelFileError

View: TypeAlias = Callable[[Stored], Stored]
"""Returns a slice, transpose or reshape of an array."""


@dataclass(frozen=True, slots=True)
class LazyTensor(StoredTensor):
    """A tensor whose elements are computed from stored ones when it is read."""

    compute: Callable[[], Stored]

    @classmethod
    def of(
        cls, name: str, shape: tuple[int, ...], path: Path, size: int, compute: Callable[[], Stored]
    ) -> LazyTensor:
        """Return a tensor of `size` bytes; its type is empty: there are no bytes to copy."""
        return cls(name, "", shape, path, 0, size, compute)

    def read(self) -> Stored:
        """Return the elements."""
        return self.compute()


def stacked(members: Sequence[StoredTensor]) -> LazyTensor:
    """Return several tensors of one shape, stacked along a new slowest dimension."""
    first = members[0]
    for member in members:
        if (member.shape, member.dtype) != (first.shape, first.dtype):
            raise ModelFileError(member.name, f"differs in shape or type from {first.name}")
    size = sum(member.size_bytes for member in members)
    return LazyTensor.of(
        first.name,
        (len(members), *first.shape),
        first.path,
        size,
        lambda: np.stack([member.read() for member in members]),
    )


def viewed(whole: StoredTensor, view: View) -> LazyTensor:
    """Return a view of another tensor; it is read as a contiguous array."""
    try:
        shape = view(whole.read()).shape
    except (ValueError, IndexError) as error:
        raise ModelFileError(whole.name, f"cannot be split: {whole.shape}") from error
    size = int(np.prod(shape)) * whole.size_bytes // max(1, int(np.prod(whole.shape)))
    return LazyTensor.of(
        whole.name, shape, whole.path, size, lambda: np.ascontiguousarray(view(whole.read()))
    )


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
