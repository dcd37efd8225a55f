"""An answer on standard output: thoughts in grey, then Markdown, wrapped words, or plain text."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from typing import TextIO

from tampu.chat.output import Content, Thinking
from tampu.cli.repl.images import Photo, take_pictures
from tampu.cli.repl.session import Session, timing_lines
from tampu.cli.repl.spinner import Spinner
from tampu.cli.repl.wrapping import PlainWriter, TextWriter, WrappingWriter

_GREY, _PLAIN = "\x1b[2m", "\x1b[0m"


@dataclass(slots=True)
class View:
    """How answers are shown.

    Attributes:
        is_verbose: with what they cost.
        is_wrapped: lines are broken between words.
        is_markdown: Markdown is rendered, where lines are wrapped.
        hides_thoughts: thoughts are not shown.
    """

    is_verbose: bool = False
    is_wrapped: bool = True
    is_markdown: bool = True
    hides_thoughts: bool = False


class AnswerPrinter:
    """Prints the parts of one answer."""

    def __init__(self, out: TextIO, view: View, *, is_markdown: bool = True) -> None:
        """Print to a file or a terminal, which is treated as its kind is."""
        self._out = out
        self._view = view
        self._is_markdown = is_markdown and view.is_markdown
        self._is_terminal = is_screen(out)
        self._thoughts: TextWriter | None = None
        self._content: TextWriter | None = None

    def show(self, part: Thinking | Content) -> None:
        """Show a part."""
        if isinstance(part, Thinking):
            if not self._view.hides_thoughts:
                self._think(part.text)
            return
        self._end_thoughts()
        if self._content is None:
            self._content = self._writer()
        self._content.write(part.text)

    def end(self) -> None:
        """End the last line."""
        self._end_thoughts()
        if self._content is not None:
            self._content.end()
        self._content = None

    def _think(self, text: str) -> None:
        if self._thoughts is None:
            self._thoughts = self._grey_writer()
            self._out.write(self._grey("Thinking...") + "\n")
        self._thoughts.write(text)

    def _end_thoughts(self) -> None:
        if self._thoughts is not None:
            self._thoughts.end()
            self._out.write(self._grey("...done thinking.") + "\n\n")
            self._out.flush()
        self._thoughts = None

    def _grey(self, text: str) -> str:
        return f"{_GREY}{text}{_PLAIN}" if self._is_terminal else text

    def _grey_writer(self) -> TextWriter:
        if self._is_terminal:
            return WrappingWriter(self._out, _columns, is_dim=True)
        return PlainWriter(self._out)

    def _writer(self) -> TextWriter:
        if not (self._is_terminal and self._view.is_wrapped):
            return PlainWriter(self._out, is_terminal=self._out.isatty())
        if not self._is_markdown:
            return WrappingWriter(self._out, _columns)
        from tampu.cli.repl.markdown import MarkdownWriter

        return MarkdownWriter(self._out)


def answer(session: Session, view: View, text: str) -> None:
    """Print the answer to a message as it comes, with the pictures that it names.

    Raises:
        TampuError: when there is no answer.
        KeyboardInterrupt: when it was stopped; what was said is printed.
    """
    question, images = pictures_of(session, text)
    printer = AnswerPrinter(sys.stdout, view, is_markdown=session.format is None)
    parts = session.answer(question, images)
    try:
        with closing(parts), Spinner(lambda: session.status) as spinner:
            _print(parts, printer, spinner)
    finally:
        printer.end()
    load_ns = session.backend.take_load_ns()
    if view.is_verbose and session.usage is not None:
        print(f"\n{timing_lines(session.usage, load_ns)}", file=sys.stderr)


def pictures_of(session: Session, text: str) -> tuple[str, list[Photo]]:
    """Return a message without the paths of its pictures, and these; what happens is told.

    Raises:
        RequestError: for a file that is no picture.
    """
    if not session.can_see:
        return text, []
    question, photos, missing = take_pictures(text)
    for path in missing:
        _tell(f"{path}: there is no such file; the model sees its name alone")
    for photo in photos:
        _tell(f"Added image '{photo.path}'")
    return question, photos


def is_screen(out: TextIO) -> bool:
    """Whether something is a terminal on which the cursor can be moved."""
    if not out.isatty():
        return False
    from rich.console import Console

    return not Console(file=out).is_dumb_terminal


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _print(parts: Generator[Thinking | Content], printer: AnswerPrinter, spinner: Spinner) -> None:
    for part in parts:
        spinner.stop()
        printer.show(part)


def _columns() -> int:
    return shutil.get_terminal_size().columns
