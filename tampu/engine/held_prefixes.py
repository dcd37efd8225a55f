"""Which prefixes of the last prompts are in a model's cache, for routers."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tampu.engine.prefixes import PrefixBorders

Keys = npt.NDArray[np.int32]

MAX_PROMPTS = 256
MAX_TOKENS = 1 << 20
MAX_LISTED = 1024
_LOOKED_AT_ONCE = 32  # the run loop waits meanwhile


@dataclass(frozen=True, slots=True)
class _Known:
    borders: PrefixBorders
    keys: Keys


class HeldPrefixes:
    """The last prompts, in bounded memory. Any thread may call it.

    A prompt that continues an earlier one takes its place: a conversation counts once.
    """

    def __init__(
        self, count_cached: Callable[[Sequence[Keys]], list[int]] = lambda given: [0] * len(given)
    ) -> None:
        """Start without prompts.

        Args:
            count_cached: returns how many of the first tokens of each prompt are in the cache.
        """
        self._count_cached = count_cached
        self._known: OrderedDict[int, _Known] = OrderedDict()  # by the last hash, oldest first
        self._tokens = 0
        self._lock = threading.Lock()

    def remember(self, borders: PrefixBorders, keys: Keys) -> None:
        """Keep a prompt: its borders, and its tokens as the prefix cache compares them."""
        if not borders.hashes or not len(keys):
            return
        with self._lock:
            for each in borders.hashes:
                self._forget(each)
            self._known[borders.hashes[-1]] = _Known(borders, keys)
            self._tokens += len(keys)
            while len(self._known) > MAX_PROMPTS or self._tokens > MAX_TOKENS:
                self._forget(next(iter(self._known)))

    def listed(self) -> tuple[int, ...]:
        """Return the hashes of what is held, those of the newest prompts first.

        A border counts as held if as large a share of the prompt's tokens is as lies before it. No
        hash is listed without those before it.
        """
        with self._lock:
            known = [*reversed(self._known.values())]
        found: dict[int, None] = {}
        for start in range(0, len(known), _LOOKED_AT_ONCE):
            some = known[start : start + _LOOKED_AT_ONCE]
            for each, cached in zip(some, self._count_cached([k.keys for k in some]), strict=True):
                found |= dict.fromkeys(each.borders.within(cached / len(each.keys)))
            if len(found) >= MAX_LISTED:
                break
        return tuple(found)[:MAX_LISTED]

    def _forget(self, last: int) -> None:
        known = self._known.pop(last, None)
        if known is not None:
            self._tokens -= len(known.keys)
