"""Recovers the token ids that llama-server does not return.

It holds back a token that ends inside a character until the character is complete. Then it sends
the text, but only the last of its tokens. The others are found from the remaining bytes.
"""

from __future__ import annotations

from functools import cached_property

from tampu.tokenizer import Tokenizer

_MAX_TOKENS = 32  # held back together; more are not text
_REPLACED = "\N{REPLACEMENT CHARACTER}".encode()
_BROKEN = b"\xff"  # never part of UTF-8, like the bytes that were replaced


class Retokenizer:
    """Finds tokens by their bytes. Any thread may call it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def before(self, token: int, text: str, count: int) -> list[int]:
        """Return the `count` tokens before a token in a text that ends with it.

        Empty if there are no such tokens: then the model's output is not text.
        """
        own = self._tokenizer.token_bytes(token)
        whole = text.encode().replace(_REPLACED, _BROKEN)
        if len(own) < len(whole) and not whole.endswith(own):  # part of it was replaced
            own = own[-1:]
        return self._spelled(whole[: len(whole) - len(own)], count)

    def _spelled(self, text: bytes, count: int) -> list[int]:
        """Return `count` tokens whose bytes are this text; empty if there are none."""
        if count > _MAX_TOKENS:
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
