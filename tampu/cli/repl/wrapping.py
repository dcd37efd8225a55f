"""Text on a terminal as it comes: words go to the next line whole."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol, TextIO

_MARGIN = 5
_NARROWEST = 20
_RUNS = re.compile(r"\n|[^\S\n]+|\S+")
_PLAIN, _DIM, _CLEAR_LINE = "\x1b[0m", "\x1b[2m", "\x1b[K"

# Control characters, but for the tab and the end of a line: a terminal would obey them.
_CONTROLS = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}


class TextWriter(Protocol):
    """Shows a text that comes in pieces."""

    def write(self, text: str) -> None:
        """Show more."""
        ...

    def end(self) -> None:
        """Show what was held back, and end the last line."""
        ...


class PlainWriter:
    """Writes a text as it is; to a terminal without what it would obey."""

    def __init__(self, out: TextIO, *, is_terminal: bool = False) -> None:
        self._out = out
        self._is_terminal = is_terminal

    def write(self, text: str) -> None:
        """Show more."""
        self._out.write(harmless(text) if self._is_terminal else text)
        self._out.flush()

    def end(self) -> None:
        """End the last line."""
        self._out.write("\n")
        self._out.flush()


class WrappingWriter:
    """Breaks lines between words.

    A word is shown as it comes; once it is too long for its line, it is taken back and begins the
    next.
    """

    def __init__(self, out: TextIO, width: Callable[[], int], *, is_dim: bool = False) -> None:
        """Write to a terminal.

        Args:
            out: the terminal.
            width: asked for its columns.
            is_dim: show the text in grey.
        """
        self._out = out
        self._width = width
        self._before, self._after = (_DIM, _PLAIN) if is_dim else ("", "")
        self._column = 0  # where the word begins
        self._word = ""

    def write(self, text: str) -> None:
        """Show more."""
        shown = "".join(map(self._placed, _RUNS.findall(harmless(text))))
        self._out.write(f"{self._before}{shown}{self._after}")
        self._out.flush()

    def end(self) -> None:
        """End the last line."""
        self._out.write("\n")
        self._out.flush()
        self._column, self._word = 0, ""

    def _placed(self, run: str) -> str:
        """Return what shows a line's end, a space or a piece of a word."""
        if run == "\n":
            self._column, self._word = 0, ""
            return run
        most = max(self._width() - _MARGIN, _NARROWEST)
        if run.isspace():
            run = run.expandtabs(4)
            self._column, self._word = self._column + cells(self._word) + len(run), ""
            return run
        before, self._word = self._word, self._word + run
        if self._column == 0 or self._column + cells(self._word) <= most:
            return run
        self._column = 0
        back = f"\x1b[{cells(before)}D{_CLEAR_LINE}" if before else ""
        return f"{back}\n{self._word}"


def cells(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    from rich.cells import cell_len

    return cell_len(text)


def harmless(text: str) -> str:
    """Return a text without what a terminal would obey."""
    return text.translate(_CONTROLS)
