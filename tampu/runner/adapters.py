"""Adapters that requests choose: which rows of a batch each of them changes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tampu.kvcache.prefix_tree import Keys

_KEYS = 2**20  # more than any vocabulary has tokens
_MAX_SETS = 1000  # their keys are 32 bits


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
class ChosenLora:
    """The adapters of one sequence.

    Attributes:
        adapters: with the strength of each.
        key_offset: what its keys in the prefix tree have more than those of the plain model, so
            that rows are shared by sequences with the same adapters only.
    """

    adapters: Choice = ()
    key_offset: int = 0

    @property
    def identity(self) -> bytes:
        """What rows follow from: the adapters' files and strengths; empty if there are none."""
        found = sorted((adapter.identity, scale) for adapter, scale in self.adapters)
        return json.dumps(found).encode() if found else b""


PLAIN = ChosenLora()


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


def token_adapters(parts: Sequence[tuple[ChosenLora, int]]) -> TokenAdapters | None:
    """Return the adapters of the tokens of a batch; None if none has any.

    Args:
        parts: the adapters of each sequence, and the number of its tokens.
    """
    most = max((len(chosen.adapters) for chosen, _ in parts), default=0)
    if not most:
        return None
    places = np.zeros((len(parts), most), np.int32)
    scales = np.zeros((len(parts), most, 1), np.float32)
    for row, (chosen, _) in enumerate(parts):
        for column, (adapter, scale) in enumerate(chosen.adapters):
            places[row, column], scales[row, column] = adapter.place, scale
    counts = [count for _, count in parts]
    return TokenAdapters(np.repeat(places, counts, axis=0), np.repeat(scales, counts, axis=0))


@dataclass(slots=True)
class AdapterKeys:
    """Makes the keys, in the prefix tree, of sequences with adapters.

    Sequences share rows if they have the same adapters with the same strengths.
    """

    _offsets: dict[frozenset[tuple[int, float]], int] = field(default_factory=dict)

    def offset(self, adapters: Choice) -> int | None:
        """Return what is added to the tokens of sequences with these adapters.

        None: there have been too many sets of adapters; such a sequence shares no rows.
        """
        known = frozenset((adapter.number, scale) for adapter, scale in adapters)
        if known not in self._offsets and len(self._offsets) >= _MAX_SETS:
            return None
        return self._offsets.setdefault(known, (1 + len(self._offsets)) * _KEYS)


def keys_with(offset: int, keys: Keys) -> Keys | None:
    """Return the keys of a prompt for sequences with adapters; None if it has too many images.

    Args:
        offset: of the adapters.
        keys: tokens, and the negative numbers of images.
    """
    if len(keys) and not -_KEYS <= keys.min() <= keys.max() < _KEYS:
        return None
    moved: Keys = np.where(keys < 0, keys - offset, keys + offset).astype(np.int32)
    return moved
