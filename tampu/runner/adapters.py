"""Adapters that requests choose: which rows of a batch each of them changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt


@dataclass(slots=True, eq=False, weakref_slot=True)
class Adapter:
    """A loaded adapter.

    Attributes:
        name: by which requests choose it.
        number: no other adapter of the model has had it.
        place: in the stacks; it changes when others are loaded, between two steps.
        identity: of its file's content.
    """

    name: str
    number: int
    place: int = 0
    identity: str = ""


Choice: TypeAlias = tuple[tuple[Adapter, float], ...]
"""Adapters, and the strength of each."""


@dataclass(frozen=True, slots=True)
class TokenAdapters:
    """The adapters that the requests of a step's tokens chose.

    Attributes:
        places: I32, (tokens, k): their places in the stacks; 0: none.
        scales: F32, (tokens, k, 1): the strength of each.
    """

    places: npt.NDArray[np.int32]
    scales: npt.NDArray[np.float32]

    def of(
        self, rows: npt.NDArray[np.int32]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Return the places and scales of some of the tokens."""
        return self.places[rows], self.scales[rows]


def token_adapters(parts: Sequence[tuple[Choice, int]]) -> TokenAdapters | None:
    """Return the adapters of the tokens of a batch; None if none has any.

    Args:
        parts: the adapters of each sequence, and the number of its tokens.
    """
    most = max((len(chosen) for chosen, _ in parts), default=0)
    if not most:
        return None
    places = np.zeros((len(parts), most), np.int32)
    scales = np.zeros((len(parts), most, 1), np.float32)
    for row, (chosen, _) in enumerate(parts):
        for column, (adapter, scale) in enumerate(chosen):
            places[row, column], scales[row, column] = adapter.place, scale
    counts = [count for _, count in parts]
    return TokenAdapters(np.repeat(places, counts, axis=0), np.repeat(scales, counts, axis=0))
