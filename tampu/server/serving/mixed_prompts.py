"""Prompts that have texts and tokens beside each other, as tokens of a model."""

from __future__ import annotations

from collections.abc import Sequence

from tampu.engine.prompts import TextPrompt
from tampu.engine.requests import Encode
from tampu.server.serving.serving import Serving
from tampu.store.catalog import Entry


async def joined(
    serving: Serving, entry: Entry, prompts: Sequence[Sequence[str | int]]
) -> list[str | list[int]]:
    """Return prompts of texts and tokens; as tokens where there are some."""
    return [await _joined(serving, entry, parts) for parts in prompts]


async def _joined(serving: Serving, entry: Entry, parts: Sequence[str | int]) -> str | list[int]:
    if all(isinstance(part, str) for part in parts):
        return "".join(map(str, parts))
    found: list[int] = []
    for part in parts:
        if isinstance(part, int):
            found.append(part)
        else:
            asked = Encode(TextPrompt(part), add_special=not found)
            encoded = await serving.ask_vocabulary(entry, asked)
            found += encoded.tokens()
    return found
