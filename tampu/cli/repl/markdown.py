"""Markdown on a terminal as it comes.

Blocks that are complete are shown once and stay. The last one is shown again whenever more of it
has come, from the first line that has changed; lines that have left the screen stay as they are.
"""

from __future__ import annotations

import io
import re
import shutil
import time
from collections.abc import Callable
from itertools import pairwise
from typing import ClassVar, TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement
from rich.syntax import Syntax
from rich.text import Text

from tampu.cli.repl.wrapping import harmless

_MARGIN = 1
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_LEAST_SECONDS = 0.06  # between two looks at the text
_SHARE = 5  # a look may take one part in this many of the time


class _LeftHeading(Heading):
    """A heading at the left; rich would centre it."""

    def __rich_console__(self, _: Console, __: ConsoleOptions) -> RenderResult:
        text: Text = self.text
        text.justify = "left"
        text.stylize("bold underline" if self.tag == "h1" else "bold")
        yield text


class _Code(CodeBlock):
    """Code without empty lines around it: those between blocks are enough."""

    def __rich_console__(self, _: Console, __: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip()
        yield Syntax(code, self.lexer_name, theme=self.theme, word_wrap=True, padding=(0, 1))


class _Rendered(Markdown):
    """Markdown of an answer: lines end where the model ends them."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _LeftHeading,
        "fence": _Code,
        "code_block": _Code,
    }

    def __init__(self, source: str) -> None:
        # Links are spelled out: what hides behind a word could lead anywhere.
        super().__init__(source, code_theme="ansi_dark", hyperlinks=False)
        for token in self.parsed:
            for child in token.children or ():
                if child.type == "softbreak":
                    child.type = "hardbreak"

    @property
    def starts(self) -> list[int]:
        """The lines at which the blocks begin."""
        return [token.map[0] for token in self.parsed if token.level == 0 and token.map]


class MarkdownWriter:
    """Shows Markdown that comes in pieces, on a terminal."""

    def __init__(
        self,
        out: TextIO,
        size: Callable[[], tuple[int, int]] = shutil.get_terminal_size,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Write to a terminal.

        Args:
            out: the terminal; the cursor is at the beginning of a line.
            size: asked for its columns and lines.
            clock: asked for the time in seconds.
        """
        self._out = out
        self._size = size
        self._clock = clock
        self._source = ""  # from the last block on
        self._lines: list[str] = []  # that show it
        self._next_look = 0.0
        self._has_block = False

    def write(self, text: str) -> None:
        """Show more, unless it was shown just now."""
        self._source += harmless(text)
        began = self._clock()
        if began >= self._next_look:
            self._look()
            took = self._clock() - began
            self._next_look = began + max(_LEAST_SECONDS, took * _SHARE)

    def end(self) -> None:
        """Show the rest."""
        self._look()
        self._keep()

    def _look(self) -> None:
        """Show the source: all blocks but the last for good."""
        starts = sorted(set(_Rendered(self._source).starts))[1:]
        lines = self._source.splitlines(keepends=True)
        for start, end in pairwise([0, *starts]):
            self._show(self._rendered("".join(lines[start:end])))
            self._keep()
        if starts:
            self._source = "".join(lines[starts[-1] :])
        self._show(self._rendered(self._source))

    def _keep(self) -> None:
        """Leave what is shown as it is."""
        self._has_block = self._has_block or bool(self._lines)
        self._lines = []

    def _rendered(self, source: str) -> list[str]:
        """Return the lines that show a block, after an empty one if something is above."""
        file = io.StringIO()
        width = max(self._size()[0] - _MARGIN, 1)
        console = Console(file=file, width=width, force_terminal=True, highlight=False)
        console.print(_Rendered(source))
        lines = [line.rstrip() for line in file.getvalue().splitlines()]
        full = [number for number, line in enumerate(lines) if _STYLE.sub("", line).strip()]
        if not full:
            return []
        return [*([""] if self._has_block else []), *lines[full[0] : full[-1] + 1]]

    def _show(self, lines: list[str]) -> None:
        """Put these lines in the place of those that are shown."""
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
