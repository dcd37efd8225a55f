"""Text on a terminal as it arrives; lines are broken between words."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TextIO

_MARGIN = 5
_MIN_WIDTH = 20
_RUNS = re.compile(r"\n|[^\S\n]+|\S+")
_PLAIN, _DIM, _CLEAR_LINE = "\x1b[0m", "\x1b[2m", "\x1b[K"

# Control characters, which a terminal would interpret, but for the tab and the end of a line.
_CONTROLS = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}


class TextWriter:
    """Writes a text that arrives in pieces; to a terminal without control characters."""

    def __init__(self, out: TextIO, *, is_terminal: bool = False) -> None:
        self._out = out
        self._is_terminal = is_terminal

    def write(self, text: str) -> None:
        """Write more."""
        self._out.write(without_controls(text) if self._is_terminal else text)
        self._out.flush()

    def end(self) -> None:
        """Write what was held back, and end the last line."""
        self._out.write("\n")
        self._out.flush()


class WrappingWriter(TextWriter):
    """Breaks lines between words.

    A word is written as it arrives; once it is too long for its line, it is erased and starts the
    next line.
    """

    def __init__(self, out: TextIO, width: Callable[[], int], *, is_dim: bool = False) -> None:
        """Write to a terminal, in grey if `is_dim`; `width` returns its number of columns."""
        super().__init__(out, is_terminal=True)
        self._width = width
        self._before, self._after = (_DIM, _PLAIN) if is_dim else ("", "")
        self._column = 0  # where the word starts
        self._word = ""

    def write(self, text: str) -> None:
        """Write more."""
        shown = "".join(map(self._placed, _RUNS.findall(without_controls(text))))
        self._out.write(f"{self._before}{shown}{self._after}")
        self._out.flush()

    def _placed(self, run: str) -> str:
        """Return what writes a line's end, a space or a piece of a word."""
        if run == "\n":
            self._column, self._word = 0, ""
            return run
        limit = max(self._width() - _MARGIN, _MIN_WIDTH)
        if run.isspace():
            run = run.expandtabs(4)
            self._column, self._word = self._column + cells(self._word) + len(run), ""
            return run
        before, self._word = self._word, self._word + run
        if self._column == 0 or self._column + cells(self._word) <= limit:
            return run
        self._column = 0
        back = f"\x1b[{cells(before)}D{_CLEAR_LINE}" if before else ""
        return f"{back}\n{self._word}"


def cells(text: str) -> int:
    """Return the number of a terminal's columns that a text takes."""
    from rich.cells import cell_len

    return cell_len(text)


def without_controls(text: str) -> str:
    """Return a text without control characters."""
    return text.translate(_CONTROLS)
