"""Arithmetic on embeddings."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_EPSILON = 1e-12  # an embedding of zeros stays as it is


def normalize(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return vectors (..., features) scaled to length 1."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    normal: npt.NDArray[np.float32] = vectors / np.maximum(lengths, _EPSILON)
    return normal
