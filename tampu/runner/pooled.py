"""What a model computes from pooled hidden states: dense layers, or a head that ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tampu.ml import Backend, GGMLType, Tensor

Rows: TypeAlias = npt.NDArray[np.float32]

_AT_ONCE = 256


def compute_rows(backend: Backend, part: Callable[[Tensor], Tensor], rows: Rows) -> Rows:
    """Return what a part of the model makes of rows (n, features); any thread may call it.

    Args:
        backend: of the model.
        part: `after_pooling` or `head`.
        rows: any number of them.

    Raises:
        ShapeError: if they do not fit the part's weights.
        OutOfMemoryError: if there is no memory for the graph.
    """
    return np.concatenate([*compute_in_parts(backend, part, rows)])


def compute_in_parts(
    backend: Backend, part: Callable[[Tensor], Tensor], rows: Rows
) -> Iterator[Rows]:
    """Yield the same for some rows after the other, so that not all of it is in memory at once."""
    for start in range(0, len(rows), _AT_ONCE):
        some = np.ascontiguousarray(rows[start : start + _AT_ONCE], np.float32)
        context = backend.context()
        try:
            given = context.input("rows", some.shape, GGMLType.F32)
            result = context.output(part(given))
            [computed] = backend.compute(context, [(given, some)], [result]).outputs
        finally:
            context.close()
        yield computed
