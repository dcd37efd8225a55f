"""Pooling: from the final hidden states of a text to its embedding.

Source of the numbers: GGUF's key `pooling_type`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tampu.errors import ModelFileError
from tampu.ml.gguf import Metadata
from tampu.settings.choices import POOLINGS

Rows = npt.NDArray[np.float32]

NONE, MEAN, CLS, LAST = POOLINGS  # their places are GGUF's numbers
RANK = "rank"
_KNOWN = (*POOLINGS, RANK)
_UNSPECIFIED = -1


def pooling_of(metadata: Metadata, wanted: str | None) -> str:
    """Return the wanted pooling, else the one that a file states, else mean.

    A model with the pooling `RANK` has no embeddings: it ranks.

    Raises:
        ModelFileError: for a number that GGUF does not have.
    """
    stated = metadata.integer("pooling_type", _KNOWN.index(MEAN))
    if not _UNSPECIFIED <= stated < len(_KNOWN):
        listed = ", ".join(f"{number} ({name})" for number, name in enumerate(_KNOWN))
        raise ModelFileError("key 'pooling_type'", f"{stated} is not known; known are {listed}")
    return wanted or (MEAN if stated == _UNSPECIFIED else _KNOWN[stated])


def rank_pooling(metadata: Metadata, default: str) -> str:
    """Return which states of a pair a head that ranks reads, as a file states it.

    Raises:
        ModelFileError: for a number that does not name a pooling.
    """
    stated = metadata.integer("classifier.pooling_type", _KNOWN.index(default))
    if not 1 <= stated <= 3:
        raise ModelFileError("key 'classifier.pooling_type'", f"{stated} is not 1, 2 or 3")
    return _KNOWN[stated]


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


def late_chunked(hidden: Rows, lengths: Sequence[int], begin: int) -> Rows:
    """Return the means (texts, features) of parts of one text's hidden states.

    Tokens before the first text are pooled with it, and those after the last text with that, so
    that a text alone has the mean of all.

    Args:
        hidden: (tokens, features).
        lengths: how many tokens each text has.
        begin: how many are before the first.
    """
    ends = (begin + np.cumsum(lengths)).tolist()
    ends[-1] = len(hidden)
    parts = zip([0, *ends[:-1]], ends, strict=True)
    return np.stack([hidden[start:end].mean(axis=0) for start, end in parts]).astype(np.float32)
