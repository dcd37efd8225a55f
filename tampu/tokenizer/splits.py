"""Where a text can be cut without changing its tokens.

SentencePiece merges over the whole text. But no merge can reach across two characters that no token
has side by side, so a text falls into independent parts there: nearly always words, because hardly
any token has a space after a letter. The pairs of characters that tokens have are kept as a table
of bits, found by a hash; a collision only makes a part longer.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tampu.ml.gguf import StringArray

_TABLE_SIZE = 1 << 22  # a vocabulary of 262,144 has about 200,000 different pairs
_FACTOR = np.uint32(0x9E3779B1)  # 2^32 divided by the golden ratio, odd: spreads neighbours widely


class SafeCuts:
    """Cuts texts into parts that are merged each for itself."""

    def __init__(self, tokens: StringArray) -> None:
        """Build the table of the tokens' pairs of characters."""
        self._joined = np.zeros(_TABLE_SIZE, dtype=bool)
        self._joined[_pairs(_separated(tokens))] = True

    def split(self, text: str) -> list[str]:
        """Return the parts in order; together they are the text."""
        cuts = (np.flatnonzero(~self._joined[_pairs(text)]) + 1).tolist()
        return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def _separated(tokens: StringArray) -> str:
    """Return all tokens with NUL between them, whose pairs with their ends do no harm."""
    data = np.frombuffer(tokens.data, dtype=np.uint8).copy()
    keep = np.ones(len(data), dtype=bool)
    lengths = tokens.starts[:-1]  # where they are: 8 bytes each, of which one is kept as NUL
    data[lengths] = 0
    for byte in range(1, 8):
        keep[lengths + byte] = False
    return data[keep].tobytes().decode("utf-8", "surrogateescape")


def _pairs(text: str) -> npt.NDArray[np.uint32]:
    """Return the place in the table of each two neighbouring characters."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    return ((codes[:-1] * _FACTOR) ^ codes[1:] * np.uint32(0x85EBCA6B)) >> np.uint32(10)
