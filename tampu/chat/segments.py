"""A prompt in pieces: text of the template, and untrusted text from outside.

Control tokens in the template's text are those tokens. The same characters in a message, a tool's
description or any other value of a caller are plain characters: no user can end a turn by typing
the token that ends it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeAlias

Prompt: TypeAlias = tuple[tuple[str, bool], ...]
"""Pieces of text, each with whether it is trusted: the template's own."""


class Tokenizer(Protocol):
    """What prompts need of a tokenizer, with a template and without."""

    @property
    def bos(self) -> int | None:
        """The token that begins a text, if there is one."""
        ...

    @property
    def adds_bos(self) -> bool:
        """Whether texts begin with `bos`."""
        ...

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Return the tokens of a text."""
        ...

    def encode_pieces(
        self, pieces: Sequence[tuple[str, bool]], *, continues: bool = False
    ) -> list[int]:
        """Return the tokens of pieces, each with whether control tokens are looked for in it.

        With `continues`, they continue other text.
        """
        ...

    def token_text(self, token: int, /) -> str:
        """Return a token as text."""
        ...


def merged(pieces: Iterable[tuple[str, bool]]) -> Prompt:
    """Return the pieces without empty ones, neighbours of the same kind joined."""
    runs: list[tuple[list[str], bool]] = []
    for text, is_trusted in pieces:
        if not text:
            continue
        if runs and runs[-1][1] == is_trusted:
            runs[-1][0].append(text)
        else:
            runs.append(([text], is_trusted))
    return tuple(("".join(texts), is_trusted) for texts, is_trusted in runs)


def text_of(prompt: Prompt) -> str:
    """Return the whole text of a prompt, for people."""
    return "".join(text for text, _ in prompt)


def encode_prompt(tokenizer: Tokenizer, pieces: Prompt) -> list[int]:
    """Return the tokens of a chat's prompt.

    Control tokens come from trusted text alone; the text between two of them is tokenized as one,
    so that a prompt without stray control tokens has the same tokens as in training. The begin
    token is added if the model wants it and the template did not write it; no end token is added,
    because the answer follows.
    """
    ids = tokenizer.encode_pieces(pieces)
    bos = tokenizer.bos
    if bos is None or not tokenizer.adds_bos or ids[:1] == [bos]:
        return ids
    ids.insert(0, bos)
    return ids
