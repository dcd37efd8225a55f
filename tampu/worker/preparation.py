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
from tampu.worker.protocol import Decide, Decode, Embed, Encode, Generate, Request, Rerank

PreparationKind: TypeAlias = Literal["short", "long", "images", "grammar"]
"""What may be slow about preparing a request: nothing, its length, its images or its grammar."""

PREPARERS: Mapping[PreparationKind, int] = MappingProxyType(
    {"short": 4, "long": 2, "images": 2, "grammar": 2}
)
"""How many requests of each kind are prepared at the same time."""

_LONG = 32 << 10  # characters or tokens; some milliseconds of tokenizing
_LONG_COMMAND = 128 << 10  # characters, or bytes of images
_MANY = 200  # messages; some milliseconds of the template


def kind_of(prompt: Prompt, structure: StructuredOutput | None = None) -> PreparationKind:
    """Return what may be slow about preparing a request."""
    if isinstance(prompt, ChatPrompt):
        if any(message.get("images") for message in prompt.messages):
            return "images"
        if len(prompt.messages) > _MANY:
            return "long"
    if _length(prompt) > _LONG:
        return "long"
    return "short" if structure is None else "grammar"


def is_long(command: Request) -> bool:
    """Return whether a request's message has so many bytes that writing it takes a while."""
    match command:
        case Embed(inputs=inputs):
            return sum(map(_length, inputs)) > _LONG_COMMAND
        case Rerank(documents=documents):
            return sum(map(len, documents)) > _LONG_COMMAND
        case Decode(tokens=tokens):
            return len(tokens) > _LONG_COMMAND
        case Generate(prompt=prompt) | Encode(prompt=prompt) | Decide(prompt=prompt):
            images = 0
            if isinstance(prompt, ChatPrompt):
                given = (message.get("images") or () for message in prompt.messages)
                images = sum(len(image) for several in given for image in several)
            return _length(prompt) + images > _LONG_COMMAND
    return False


def _length(prompt: Prompt) -> int:
    """Return the characters of a prompt's texts, or its number of tokens."""
    match prompt:
        case TextPrompt(text=text):
            return len(text)
        case TokensPrompt(tokens=tokens):
            return len(tokens)
        case FIMPrompt(prefix=prefix, suffix=suffix):
            return len(prefix) + len(suffix)
        case ChatPrompt(messages=messages, before=before):
            return len(before) + sum(len(each.get("content") or "") for each in messages)
