"""The kinds of requests that look at a model or change it, instead of asking it about a text."""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

import msgspec

from tampu.engine.load_options import LoadOptions
from tampu.engine.request import Lane, Request, Result
from tampu.runner.recorder import RunnerSnapshot

SlotAction: TypeAlias = Literal["save", "restore", "erase"]


class DeviceEstimate(msgspec.Struct, frozen=True):
    """What a model would take of one device, in bytes.

    Attributes:
        name: of the device: `CUDA.0`, `CPU.0`.
        weights: of its files; those of the CPU are mapped, and other processes may share the pages.
        cache: keys and values of all slots, and states of recurrent layers.
        graphs: intermediate results, estimated.
        available: what is free for models now.
    """

    name: str
    weights: int
    cache: int
    graphs: int
    available: int


class MemoryEstimate(Result, frozen=True):
    """What a model would take of memory, beside all that takes some now.

    Attributes:
        context: of each slot, in tokens.
        slots: how many requests it would compute at once.
        devices: those with a part of it, the CPU last; all of it is the CPU's if it does not fit.
        fits: whether it could be loaded now.
        message: why it does not fit, and what would fit instead; empty if it does.
    """

    context: int
    slots: int
    devices: tuple[DeviceEstimate, ...]
    fits: bool
    message: str = ""


class EstimateMemory(Request[MemoryEstimate], frozen=True):
    """Return what the model of a file would take; paths are as `sent_path` returns them."""

    path: str
    options: LoadOptions


class Observed(Result, frozen=True):
    """What the run loop has done since the last such request, and what is in the cache."""

    snapshot: RunnerSnapshot


class Observe(Request[Observed], frozen=True):
    """Return what the run loop has done since the last such request."""


class Prefixes(Result, frozen=True):
    """The hashes of the prefixes that are in the cache."""

    hashes: tuple[int, ...]


class ListPrefixes(Request[Prefixes], frozen=True):
    """Return which prefixes of the last prompts that had `borders` are in the cache."""


class ActedOnSlot(Result, frozen=True):
    """A slot's conversation was saved, restored or erased: its tokens, and the file's bytes."""

    tokens: int
    size_bytes: int


class ActOnSlot(Request[ActedOnSlot], frozen=True):
    """Save, restore or erase the last conversation of a slot; the path is as of `sent_path`."""

    runs_in: ClassVar[Lane] = "embed"
    action: SlotAction
    slot: int
    path: str


class AdapterChanged(Result, frozen=True):
    """An adapter was loaded or unloaded; the names of all that are loaded."""

    names: tuple[str, ...]


class ChangeAdapter(Request[AdapterChanged], frozen=True):
    """Load the adapter in a file, so that requests may choose it; without a path: unload it.

    The path is as `sent_path` returns it.
    """

    runs_in: ClassVar[Lane] = "embed"
    name: str
    path: str | None = None
