"""What a model will take of a device's memory, known before anything is taken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tampu.errors import OutOfMemoryError
from tampu.kvcache import CacheSize, cache_bytes
from tampu.modelinfo import ModelInfo
from tampu.nn import CacheShape

_GIB = 2**30
_OUTPUT_BYTES = 64 * 2**20  # logits that one batch may give at most
_HIDDEN = 8  # arrays as wide as the hidden state that a graph holds at once
_INNER = 3  # and as wide as its feed-forward layers


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes on one device.

    Attributes:
        weights: of the file; mapped, so that others may use the same pages.
        cache: keys and values for all slots.
        graphs: what computing takes, about.
    """

    weights: int
    cache: int
    graphs: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.cache + self.graphs

    def __str__(self) -> str:
        parts = ("weights", self.weights), ("cache", self.cache), ("graphs about", self.graphs)
        return ", ".join(f"{name} {size / _GIB:.1f} GiB" for name, size in parts)


@dataclass(frozen=True, slots=True)
class Wish:
    """A model with what it shall be loaded for.

    Attributes:
        info: of the model.
        shapes: what each layer needs of the cache.
        size: how much the cache must hold.
        types: of keys and of values.
    """

    info: ModelInfo
    shapes: Sequence[CacheShape]
    size: CacheSize
    types: tuple[str, str]

    def need(self) -> MemoryNeed:
        """Return what it takes."""
        metadata = self.info.metadata
        hidden = metadata.integer("embedding_length", default=0)
        widths = metadata.get(metadata.full_key("feed_forward_length"), 4 * hidden)
        inner = int(np.max(widths)) if isinstance(widths, int | np.ndarray) else 4 * hidden
        vocabulary = len(metadata.strings("tokenizer.ggml.tokens", default=()))
        results = most_outputs(self.size, vocabulary) * vocabulary
        graphs = self.size.batch * (_HIDDEN * hidden + _INNER * inner) + results
        cache = cache_bytes(self.shapes, self.size, *self.types)
        return MemoryNeed(self.info.size_bytes, cache, 4 * graphs)

    def check(self, device: str, available: int) -> None:
        """Refuse what cannot fit.

        Raises:
            OutOfMemoryError: with the numbers, and what would fit.
        """
        need = self.need()
        if need.total <= available:
            return
        raise OutOfMemoryError(
            f"{self.info.path.name} with a context of {self.size.context} tokens in "
            f"{self.size.slots} slots does not fit on {device}: {need}; "
            f"{available / _GIB:.1f} GiB are available. "
            + (" or ".join(self._fitting(available)) or "Choose a smaller model")
        )

    def _fitting(self, available: int) -> Iterator[str]:
        """Yield what could be asked for instead."""
        if (context := self._longest(available)) > 0:
            yield f"Choose a context of at most {context}"
        if self.types != ("q8_0", "q8_0"):
            smaller = replace(self, types=("q8_0", "q8_0"))
            if smaller.need().total <= available:
                yield "the cache type q8_0"
        if self.size.slots > 1:
            single = replace(self, size=replace(self.size, slots=1))
            if single.need().total <= available:
                yield "fewer slots"

    def _longest(self, available: int) -> int:
        """Return the longest context that fits, a multiple of 256; 0 if none does."""
        low, high = 0, self.size.context // 256
        while low < high:
            middle = (low + high + 1) // 2
            shorter = replace(self, size=replace(self.size, context=256 * middle))
            if shorter.need().total <= available:
                low = middle
            else:
                high = middle - 1
        return 256 * low


def most_outputs(size: CacheSize, vocabulary: int) -> int:
    """Return how many tokens of a batch may have logits."""
    return max(size.slots, min(size.batch, _OUTPUT_BYTES // (4 * max(vocabulary, 1))))
