"""Pooling: from the final hidden states of a text to its embedding.

Source of the numbers: GGUF's key `pooling_type`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tampu.ml.gguf import Metadata
from tampu.settings.settings import POOLINGS

Rows = npt.NDArray[np.float32]

NONE, MEAN, CLS, LAST = POOLINGS  # their places are GGUF's numbers
RANK = "rank"
_KNOWN = (*POOLINGS, RANK)


def pooling_of(metadata: Metadata, wanted: str | None) -> str:
    """Return the wanted pooling, else the one that a file states, else mean.

    A model with the pooling `RANK` has no embeddings: it ranks.
    """
    stated = metadata.integer("pooling_type", _KNOWN.index(MEAN))
    known = _KNOWN[stated] if 0 <= stated < len(_KNOWN) else MEAN
    return wanted or known


def pooled(hidden: Rows, pooling: str) -> Rows:
    """Return hidden states (tokens, features) as rows: one, or with the pooling none all."""
    match pooling:
        case "none":
            return hidden
        case "cls":
            return hidden[:1]
        case "last":
            return hidden[-1:]
    return np.asarray(hidden.mean(axis=0, keepdims=True), np.float32)
