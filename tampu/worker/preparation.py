"""Which requests are prepared beside which: each waits only for those that may be as slow."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias

from tampu.engine.prompts import (
    ChatPrompt,
    FIMPrompt,
    Prompt,
    StructuredOutput,
    TextPrompt,
    TokensPrompt,
)

PreparationKind: TypeAlias = Literal["short", "long", "images", "grammar"]
"""What may be slow about preparing a request: nothing, its length, its images or its grammar."""

PREPARERS: Mapping[PreparationKind, int] = MappingProxyType(
    {"short": 4, "long": 2, "images": 2, "grammar": 2}
)
"""How many requests of each kind are prepared at the same time."""

_LONG = 32 << 10  # characters or tokens; some milliseconds of tokenizing
_MANY = 200  # messages; some milliseconds of the template


def kind_of(prompt: Prompt, structure: StructuredOutput | None = None) -> PreparationKind:
    """Return what may be slow about preparing a request."""
    size = 0
    match prompt:
        case TextPrompt(text=text):
            size = len(text)
        case TokensPrompt(tokens=tokens):
            size = len(tokens)
        case FIMPrompt(prefix=prefix, suffix=suffix):
            size = len(prefix) + len(suffix)
        case ChatPrompt(messages=messages, before=before):
            if any(message.get("images") for message in messages):
                return "images"
            if len(messages) > _MANY:
                return "long"
            size = len(before) + sum(len(message.get("content") or "") for message in messages)
    if size > _LONG:
        return "long"
    return "short" if structure is None else "grammar"
