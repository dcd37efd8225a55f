"""The two interfaces that each family of tokenizers implements."""

from __future__ import annotations

from typing import Protocol

from tampu.tokenizer.vocabulary import Specials


class Encoder(Protocol):
    """Turns text into tokens; costly to build, so it is built when it is first needed."""

    def encode(self, text: str, *, after_special: bool) -> list[int]:
        """Return the ids of a text without special tokens.

        Args:
            text: not empty, as `Family.normalize` gave it.
            after_special: whether a special token, or nothing at all, comes before it.
        """
        ...


class Family(Protocol):
    """One kind of tokenizer with its vocabulary; cheap to build."""

    specials: Specials
    # Whether the first token of a text begins with a space that isn't in the text.
    adds_space: bool

    def normalize(self, text: str) -> str:
        """Return the text, or a special token's, in the form in which the two are compared."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes for which a token stands, be it a control token; maybe half a letter."""
        ...

    def build_encoder(self) -> Encoder:
        """Build what turns text into tokens."""
        ...
