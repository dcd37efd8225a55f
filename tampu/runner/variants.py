"""How requests change the model, and the keys by which they share rows with no others."""

from __future__ import annotations

import json
from collections.abc import Hashable
from dataclasses import dataclass, field, replace

import numpy as np

from tampu.kvcache.prefix_tree import Keys
from tampu.runner.adapters import Choice
from tampu.runner.steering import SequenceSteering

_KEYS = 2**20  # more than any vocabulary has tokens
_MAX_VARIANTS = 1000  # their keys are 32 bits


@dataclass(frozen=True, slots=True)
class Variant:
    """How one request changes the model.

    Attributes:
        adapters: with the strength of each.
        steering: of values inside the model; None: none.
        key_offset: what its keys in the prefix tree have more than those of the plain model, so
            that rows are shared by sequences with the same variant only.
    """

    adapters: Choice = ()
    steering: SequenceSteering | None = None
    key_offset: int = 0

    def __bool__(self) -> bool:
        """Whether it changes anything."""
        return bool(self.adapters) or self.steering is not None

    @property
    def identity(self) -> bytes:
        """What rows follow from, in any process; empty if it changes nothing."""
        found = sorted((adapter.identity, scale) for adapter, scale in self.adapters)
        adapters = json.dumps(found).encode() if found else b""
        return adapters + (self.steering.digest if self.steering else b"")

    @property
    def key(self) -> Hashable:
        """What rows follow from, in this process."""
        adapters = frozenset((adapter.number, scale) for adapter, scale in self.adapters)
        return adapters, self.steering.digest if self.steering else b""


PLAIN = Variant()


@dataclass(slots=True)
class VariantKeys:
    """Makes the keys, in the prefix tree, of sequences that change the model."""

    _offsets: dict[Hashable, int] = field(default_factory=dict)

    def offset(self, variant: Variant) -> int | None:
        """Return what is added to the tokens of sequences with a variant.

        None: there have been too many variants; such a sequence shares no rows.
        """
        if variant.key not in self._offsets and len(self._offsets) >= _MAX_VARIANTS:
            return None
        return self._offsets.setdefault(variant.key, (1 + len(self._offsets)) * _KEYS)


def vary(variant: Variant, keys: VariantKeys, prompt: Keys) -> tuple[Variant, Keys | None]:
    """Return a variant with its offset, and the keys of a prompt with it.

    None: such a sequence shares no rows, and has no offset.
    """
    offset = keys.offset(variant)
    moved = None if offset is None else keys_with(offset, prompt)
    if offset is None or moved is None:
        return variant, None
    return replace(variant, key_offset=offset), moved


def keys_with(offset: int, keys: Keys) -> Keys | None:
    """Return the keys of a prompt for sequences with a variant; None if it has too many images.

    Args:
        offset: of the variant.
        keys: tokens, and the negative numbers of images.
    """
    if len(keys) and not -_KEYS <= keys.min() <= keys.max() < _KEYS:
        return None
    moved: Keys = np.where(keys < 0, keys - offset, keys + offset).astype(np.int32)
    return moved
