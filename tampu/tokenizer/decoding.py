"""From tokens back to text, token by token, in whole characters."""

from __future__ import annotations

import codecs
import logging
from collections.abc import Callable

logger = logging.getLogger("tampu.tokenizer")
TRACE = 5  # a level below DEBUG: texts and their tokens
logging.addLevelName(TRACE, "TRACE")


class IncrementalDecoder:
    """Turns the tokens of one text into its characters as they come.

    Bytes that may still become a character are held back. Bytes that no longer can are replaced by
    U+FFFD immediately, one for each longest prefix of a character (as Unicode recommends).
    """

    def __init__(self, token_bytes: Callable[[int], bytes], *, strip_space: bool = False) -> None:
        """Start a text.

        Args:
            token_bytes: returns the bytes of a token.
            strip_space: whether one space at the start of the text is left out.
        """
        self._token_bytes = token_bytes
        self._strip_space = strip_space
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        """Return the characters that are complete with this token; often "" for a while."""
        data = self._token_bytes(token)
        if self._strip_space and data:
            data = data.removeprefix(b" ")
            self._strip_space = False
        text = self._utf8.decode(data)
        logger.log(TRACE, "decode %d -> %r", token, text, extra={"ids": [token], "text": text})
        return text

    def flush(self) -> str:
        """End the text; return U+FFFD if it ended in the middle of a character, else ""."""
        text = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return text
