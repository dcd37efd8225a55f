"""Whether a model has room in memory beside others, judged by its last load, else by its file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tampu.engine.backend import ModelFacts
from tampu.engine.load_options import LoadOptions
from tampu.ml.machine import read_available_memory
from tampu.store.catalog import Entry

# The share of free memory that a model may take; the rest is for everything else.
_USABLE_SHARE_OF_FREE = 0.9


class MemoryBudget:
    """The memory for models, and what each took when it was last loaded."""

    def __init__(self, memory_bytes: int | None) -> None:
        """Allow all models together this memory; None: the free memory."""
        self._memory_bytes = memory_bytes
        self._sizes: dict[tuple[str, LoadOptions], ModelFacts] = {}
        self._device_free: int | None = None  # after the last load, plus what was closed since

    def loaded(self, entry: Entry, options: LoadOptions, facts: ModelFacts) -> None:
        """Note what a model takes that was loaded."""
        self._sizes[entry.name, options] = facts
        self._device_free = facts.device_free

    def closed(self, facts: ModelFacts) -> None:
        """Note that a model is being closed."""
        if self._device_free is not None:
            self._device_free += facts.device_bytes

    def has_room(self, entry: Entry, options: LoadOptions, others: Sequence[ModelFacts]) -> bool:
        """Whether a model fits beside others."""
        known = self._sizes.get((entry.name, options))
        file_bytes = entry.info.size_bytes + _draft_bytes(options)
        needed = file_bytes if known is None else known.memory_bytes
        if self._memory_bytes is not None:
            return needed + sum(other.memory_bytes for other in others) <= self._memory_bytes
        is_taken = any(other.device_bytes for other in others)
        if is_taken and not self._has_room_on_devices(known, options, file_bytes):
            return False
        free = self._device_free if options.gpu_layers and self._device_free else 0
        on_devices = min(free, needed) if known is None else known.device_bytes
        return needed - on_devices <= _USABLE_SHARE_OF_FREE * read_available_memory().free

    def _has_room_on_devices(
        self, known: ModelFacts | None, options: LoadOptions, file_bytes: int
    ) -> bool:
        """Whether devices that another model uses have room for the model's layers.

        Layers that do not fit there are computed by the CPU, many times more slowly.
        """
        if self._device_free is None or not options.gpu_layers:
            return True
        before = 0 if known is None else known.device_bytes
        is_part = options.gpu_layers > 0 and known is not None
        return (before if is_part else max(before, file_bytes)) <= self._device_free


def _draft_bytes(options: LoadOptions) -> int:
    """Return the size of a draft model's file; 0 if there is none."""
    try:
        return 0 if options.draft is None else Path(options.draft).stat().st_size
    except OSError:  # loading it says what is wrong
        return 0
