"""Tokens that llama.cpp does not tell.

A token that ends inside a character is held back until the character is whole. Then the text comes,
but of the tokens only the last one. What the others were is found from the bytes that are left.
"""

from __future__ import annotations

from functools import cached_property
from typing import Protocol

_MOST = 32  # held back at once; more are no text
_REPLACED = "\N{REPLACEMENT CHARACTER}".encode()
_BROKEN = b"\xff"  # a byte of no character, as what was replaced


class Spelling(Protocol):
    """What this needs of a tokenizer."""

    def all_token_bytes(self) -> list[bytes]:
        """Return the bytes of every token; b"" for control tokens."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes for which a token stands."""
        ...


class Retokenizer:
    """Finds them. Any thread may ask."""

    def __init__(self, tokenizer: Spelling) -> None:
        self._tokenizer = tokenizer

    def before(self, token: int, text: str, count: int) -> list[int]:
        """Return so many tokens that come before a token in a text that ends with it.

        None if there are no such tokens: what a model gave is no text then.
        """
        own = self._tokenizer.token_bytes(token)
        whole = text.encode().replace(_REPLACED, _BROKEN)
        if len(own) < len(whole) and not whole.endswith(own):  # it is a part of what was replaced
            own = own[-1:]
        return self._spelled(whole[: len(whole) - len(own)], count)

    def _spelled(self, text: bytes, count: int) -> list[int]:
        """Return the tokens that spell a text, so many."""
        if count > _MOST:
            return []
        ways: dict[int, list[int]] = {0: []}
        for _ in range(count):
            longer: dict[int, list[int]] = {}
            for start, tokens in ways.items():
                for end in range(start + 1, min(len(text), start + self._longest) + 1):
                    if (found := self._ids.get(text[start:end])) is not None:
                        longer.setdefault(end, [*tokens, found])
            ways = longer
        return ways.get(len(text), [])

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        return {
            spelled: id for id, spelled in enumerate(self._tokenizer.all_token_bytes()) if spelled
        }

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._ids), default=0)
