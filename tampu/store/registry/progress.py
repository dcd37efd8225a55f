"""Progress of pulls, pushes and creations: the objects that Ollama's API streams."""

from __future__ import annotations

import msgspec


class Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    """One step of a transfer.

    Attributes:
        status: the step, in Ollama's words.
        digest: of the blob, if the step has one.
        total: the blob's size in bytes.
        completed: the number of bytes done.
    """

    status: str
    digest: str = ""
    total: int = 0
    completed: int = 0
