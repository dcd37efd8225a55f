"""Long texts in blocks, so that other threads run in between and a cancelled request ends.

The `tokenizers` library and NumPy hold the interpreter's lock for as long as a call takes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tampu.cancellation import check_cancelled

BLOCK = 4096  # characters: some milliseconds of the library's time
_WINDOW = 16 * BLOCK  # characters that are searched at once for the end of a block, or changed
_ENDS = {
    True: re.compile(r"[A-Za-z](?=[ \n])", re.ASCII),
    False: re.compile(r"[A-Za-z](?=\n)", re.ASCII),
}


def blocks(text: str, size: int = BLOCK, *, at_spaces: bool = True) -> Iterator[str]:
    """Yield a text in parts of `size` characters and some more, which end with a word.

    Their words are those of the whole text: no word has a letter before a line feed in it, nor
    before a space if `at_spaces`, and how words are found does not depend on what is before them.
    A text without such a place is one part.

    Raises:
        RequestCancelledError: between two blocks, see `check_cancelled`.
    """
    begin = 0
    pattern = _ENDS[at_spaces]
    while (end := _next_end(pattern, text, begin + size)) is not None:
        check_cancelled()
        yield text[begin:end]
        begin = end
    check_cancelled()
    yield text[begin:]


def slices(text: str) -> Iterator[str]:
    """Yield a text in parts that can be copied at once, wherever they end.

    Raises:
        RequestCancelledError: between two parts, see `check_cancelled`.
    """
    for begin in range(0, len(text), _WINDOW):
        check_cancelled()
        yield text[begin : begin + _WINDOW]


def _next_end(pattern: re.Pattern[str], text: str, position: int) -> int | None:
    """Return the end of the first match after a position; None without one."""
    while position < len(text):
        # One more character, for what follows the last letter of the window.
        if match := pattern.search(text, position, position + _WINDOW + 1):
            return match.end()
        position += _WINDOW
        check_cancelled()
    return None
