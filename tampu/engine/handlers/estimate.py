"""What a model would take of memory."""

from __future__ import annotations

from pathlib import Path

from tampu.engine.backend import Backend, Handlers
from tampu.engine.estimate import estimate_memory
from tampu.engine.management import (
    EstimateMemory,
    MemoryEstimate,
)
from tampu.engine.sent_paths import received_options, received_path


def estimate(_: Backend, request: EstimateMemory) -> MemoryEstimate:
    """Return what the model of a file would take; raises as `estimate_memory`."""
    return estimate_memory(Path(received_path(request.path)), received_options(request.options))


HANDLERS: Handlers = {EstimateMemory: estimate}
