"""Markdown on a terminal as it arrives.

A complete block is printed once. The last block is printed again whenever it has grown, from the
first line that has changed; lines that have scrolled off the screen stay as they are. (`rich.live`
would cut off a block that is taller than the screen.) A block that would lose something is printed
as it was written.
"""

from __future__ import annotations

import io
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import ClassVar, TextIO

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement, TableElement, TextElement
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from tampu.cli.repl.markdown_parser import markdown_parser
from tampu.cli.repl.wrapping import TextWriter, without_controls

_MARGIN = 1
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
# Numbers of lists, which are counted anew, and languages of code, which are not shown.
_UNSHOWN = re.compile(r"^[ \t>]*(?:(?:[-*+]|\d+[.)])\s+)*(?:(?:```+|~~~+)[^\s/:=.]*[ \t]*$)?", re.M)
_MIN_INTERVAL_S = 0.06
_SHARE = 5  # rendering may take one part in this many of the time


class _LeftHeading(Heading):
    """A heading on the left; rich would center it."""

    def __rich_console__(self, _: Console, __: ConsoleOptions) -> RenderResult:
        text: Text = self.text
        text.justify = "left"
        text.stylize("bold underline" if self.tag == "h1" else "bold")
        yield text


class _Code(CodeBlock):
    """Code without empty lines around it; there are some between blocks."""

    def __rich_console__(self, _: Console, __: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip()
        yield Syntax(code, self.lexer_name, theme=self.theme, word_wrap=True, padding=(0, 1))


class _HTML(TextElement):
    """A block of HTML, as it was written."""

    def __rich_console__(self, _: Console, __: ConsoleOptions) -> RenderResult:
        yield Text(str(self.text).rstrip("\n"))


class _Table(TableElement):
    """A table whose long words are broken; rich would cut them."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for part in super().__rich_console__(console, options):
            if isinstance(part, Table):
                for column in part.columns:
                    column.overflow = "fold"
            yield part


class _Rendered(Markdown):
    """Markdown of an answer; its line breaks are kept."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _LeftHeading,
        "fence": _Code,
        "code_block": _Code,
        "html_block": _HTML,
        "table_open": _Table,
    }

    def __init__(self, source: str) -> None:
        super().__init__("", code_theme="ansi_dark")
        self.parsed = markdown_parser().parse(source)

    @property
    def starts(self) -> list[int]:
        """The lines at which blocks start."""
        return [token.map[0] for token in self.parsed if token.level == 0 and token.map]


class MarkdownWriter(TextWriter):
    """Renders Markdown that arrives in pieces."""

    def __init__(
        self,
        out: TextIO,
        size: Callable[[], tuple[int, int]] = shutil.get_terminal_size,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Write to a terminal whose cursor is at the start of a line.

        `size` returns its columns and lines, `clock` the time in seconds.
        """
        super().__init__(out, is_terminal=True)
        self._size = size
        self._clock = clock
        self._source = ""  # of the last block
        self._lines: list[str] = []  # printed for it
        self._next_render = 0.0
        self._has_block = False

    def write(self, text: str) -> None:
        """Add text; render it unless that was done just now."""
        self._source += without_controls(text)
        began = self._clock()
        if began >= self._next_render:
            self._render()
            took = self._clock() - began
            self._next_render = began + max(_MIN_INTERVAL_S, took * _SHARE)

    def end(self) -> None:
        """Render the rest."""
        self._render()
        self._keep()

    def _render(self) -> None:
        """Print the source; all blocks but the last are finished."""
        starts = sorted(set(_Rendered(self._source).starts))[1:]
        lines = self._source.splitlines(keepends=True)
        for start, end in pairwise([0, *starts]):
            self._show(self._rendered("".join(lines[start:end])))
            self._keep()
        if starts:
            self._source = "".join(lines[starts[-1] :])
        self._show(self._rendered(self._source))

    def _keep(self) -> None:
        """Finish the last block."""
        self._has_block = self._has_block or bool(self._lines)
        self._lines = []

    def _rendered(self, source: str) -> list[str]:
        """Return the lines of a block, after an empty one if it is not the first."""
        lines = self._printed(_Rendered(source))
        if not _characters(_UNSHOWN.sub("", source)) <= _characters(_STYLE.sub("", "".join(lines))):
            lines = self._printed(Text(source))
        full = [number for number, line in enumerate(lines) if _STYLE.sub("", line).strip()]
        if not full:
            return []
        return [*([""] if self._has_block else []), *lines[full[0] : full[-1] + 1]]

    def _printed(self, block: RenderableType) -> list[str]:
        file = io.StringIO()
        width = max(self._size()[0] - _MARGIN, 1)
        Console(file=file, width=width, force_terminal=True, highlight=False).print(block)
        return [line.rstrip() for line in file.getvalue().splitlines()]

    def _show(self, lines: list[str]) -> None:
        """Replace the printed lines of the last block."""
        shown = len(self._lines)
        pairs = zip(self._lines, lines, strict=False)
        changed = (number for number, (old, new) in enumerate(pairs) if old != new)
        same = next(changed, min(shown, len(lines)))
        reachable = max(shown - self._size()[1] + 1, 0)
        first = max(same, reachable)
        up = shown - first
        if up == 0 and first >= len(lines):
            return
        back = f"\x1b[{up}A\r\x1b[J" if up else ""
        self._out.write(back + "".join(f"{line}\n" for line in lines[first:]))
        self._out.flush()
        self._lines = lines


def _characters(text: str) -> Counter[str]:
    """Return how often a text has each of its letters and digits."""
    return Counter(filter(str.isalnum, text))
