"""Arithmetic on embeddings."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

UNIT = 2  # the norm by which a vector has length 1
_EPSILON = 1e-12  # an embedding of zeros stays as it is
_LARGEST = 32760  # fits 16 bits


def unit_vectors(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return vectors (..., features) scaled to length 1."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    normal: npt.NDArray[np.float32] = vectors / np.maximum(lengths, _EPSILON)
    return normal


def scaled(vectors: npt.NDArray[np.float32], norm: int) -> npt.NDArray[np.float32]:
    """Return vectors (..., features) scaled by one of llama.cpp's norms (`--embd-normalize`).

    Args:
        vectors: of any length.
        norm: 0: the largest absolute value is 32760; 1: the absolute values add to 1; p from 2 on:
            the p-norm is 1.
    """
    sizes = np.abs(vectors)
    if norm == 0:
        lengths = sizes.max(axis=-1, keepdims=True) / _LARGEST
    else:
        lengths = (sizes**norm).sum(axis=-1, keepdims=True) ** (1 / norm)
    found: npt.NDArray[np.float32] = vectors / np.maximum(lengths, _EPSILON)
    return found.astype(np.float32)
