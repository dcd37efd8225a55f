"""Errors about tensors of a file that do not match each other or its metadata."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb

from tampu.errors import ModelFileError, ShapeError
from tampu.ml import Tensor
from tampu.nn.module import Module

_SHOWN = 6


@contextmanager
def naming_tensors() -> Iterator[None]:
    """Turn a ShapeError of a graph into a ModelFileError that names the tensors concerned.

    Raises:
        ModelFileError: with the weights of the innermost module, and the operation that failed.
    """
    try:
        yield
    except ShapeError as error:
        near = _weights_near(error)
        named = ", ".join(f"{name} {[*shape]}" for name, shape in near[:_SHOWN])
        what = f"{named} do not match" if named else "the tensors do not match"
        reason = f"{what} each other or the metadata: {error}"
        raise ModelFileError("tensors", reason) from None


def _weights_near(error: ShapeError) -> list[tuple[str, tuple[int, ...]]]:
    """Return the names and shapes of the weights of the innermost module that has some."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    for frame in reversed(frames):
        module = frame.f_locals.get("self")
        found = _weights(module) if isinstance(module, Module) else []
        if found:
            return found
    return []


def _weights(module: Module) -> list[tuple[str, tuple[int, ...]]]:
    parts = [module, *(part for part in vars(module).values() if isinstance(part, Module))]
    tensors = [each for part in parts for each in vars(part).values() if isinstance(each, Tensor)]
    return [(tensor.name, tensor.shape) for tensor in tensors]
