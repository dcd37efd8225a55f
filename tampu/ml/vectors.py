"""Arithmetic on embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tampu.errors import ComputeError

UNIT = 2  # the norm by which a vector has length 1
_EPSILON = 1e-12  # an embedding of zeros stays as it is
_LARGEST = 32760  # fits 16 bits


def check_finite(
    parts: npt.NDArray[np.float32] | Sequence[npt.NDArray[np.float32]], what: str, place: str
) -> None:
    """Refuse what a model computed if any of it is NaN or infinite.

    Args:
        parts: the values of each input.
        what: they are.
        place: of the inputs, `place[0]` and so on.

    Raises:
        ComputeError: naming the first input with such a value.
    """
    for index, part in enumerate(parts):
        if not np.isfinite(part).all():
            raise ComputeError(f"the model computed NaN or infinite {what} for {place}[{index}]")


def unit_vectors(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return vectors (..., features) scaled to length 1."""
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=-1, keepdims=True)
    normal: npt.NDArray[np.float32] = (vectors / np.maximum(lengths, _EPSILON)).astype(np.float32)
    return normal


def scaled(vectors: npt.NDArray[np.float32], norm: int) -> npt.NDArray[np.float32]:
    """Return vectors (..., features) scaled by one of llama.cpp's norms (`--embd-normalize`).

    Args:
        vectors: of any length.
        norm: 0: the largest absolute value is 32760; 1: the absolute values add to 1; p from 2 on:
            the p-norm is 1.
    """
    sizes = np.abs(vectors, dtype=np.float64)
    largest = sizes.max(axis=-1, keepdims=True)
    if norm == 0:
        lengths = largest / _LARGEST
    else:  # powers of large numbers would be infinite
        shares = sizes / np.maximum(largest, _EPSILON)
        lengths = largest * (shares**norm).sum(axis=-1, keepdims=True) ** (1 / norm)
    found: npt.NDArray[np.float32] = vectors / np.maximum(lengths, _EPSILON)
    return found.astype(np.float32)
