"""What a transfer says of itself while it runs: the objects that Ollama's API streams."""

from __future__ import annotations

import msgspec


class Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    """One step of a transfer.

    Attributes:
        status: what is being done, in Ollama's words.
        digest: of the blob that it is about; empty for none.
        total: the blob's bytes.
        completed: how many of them are done.
    """

    status: str
    digest: str = ""
    total: int = 0
    completed: int = 0
