"""A loaded model in its process, with what the process tells of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tampu.engine.backend import Backend
from tampu.engine.chat import RequestBuilder
from tampu.runner.events import BatchCounts
from tampu.runner.recorder import RunnerSnapshot
from tampu.worker.held_prefixes import HeldPrefixes
from tampu.worker.protocol import Ready


@dataclass(frozen=True, slots=True)
class Loaded:
    """A loaded model, the builder of its requests, and what tells what it does, if anything.

    `counts` returns the batches that it has computed.
    """

    model: Backend
    requests: RequestBuilder
    ready: Ready
    observe: Callable[[], RunnerSnapshot | None] = lambda: None
    counts: Callable[[], BatchCounts] = BatchCounts
    prefixes: HeldPrefixes = field(default_factory=HeldPrefixes)
