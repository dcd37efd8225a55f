"""An answer on standard output: reasoning in grey, then Markdown, wrapped words, or plain text."""

from __future__ import annotations

import shutil
import sys
from contextlib import closing
from dataclasses import dataclass
from typing import TextIO

from tampu.chat.output import Content, Reasoning
from tampu.cli.repl.media_files import MediaFile, take_files
from tampu.cli.repl.session import Session, timing_lines
from tampu.cli.repl.spinner import Spinner
from tampu.cli.repl.wrapping import TextWriter, WrappingWriter

_GREY, _PLAIN = "\x1b[2m", "\x1b[0m"


@dataclass(slots=True)
class View:
    """How answers are shown.

    Attributes:
        is_verbose: with their token counts and durations.
        is_wrapped: lines are broken between words.
        is_markdown: Markdown is rendered, where lines are wrapped.
        hides_reasoning: reasoning is not shown.
    """

    is_verbose: bool = False
    is_wrapped: bool = True
    is_markdown: bool = True
    hides_reasoning: bool = False


class AnswerPrinter:
    """Prints the parts of one answer."""

    def __init__(self, out: TextIO, view: View, *, is_markdown: bool = True) -> None:
        """Print to a terminal, or to a file as plain text."""
        self._out = out
        self._view = view
        self._is_markdown = is_markdown and view.is_markdown
        self._is_terminal = _can_move_cursor(out)
        self._reasoning: TextWriter | None = None
        self._content: TextWriter | None = None

    def show(self, part: Reasoning | Content) -> None:
        """Print a part."""
        if isinstance(part, Reasoning):
            if not self._view.hides_reasoning:
                self._show_reasoning(part.text)
            return
        self._end_reasoning()
        if self._content is None:
            self._content = self._content_writer()
        self._content.write(part.text)

    def end(self) -> None:
        """End the last line."""
        self._end_reasoning()
        if self._content is not None:
            self._content.end()
        self._content = None

    def _show_reasoning(self, text: str) -> None:
        if self._reasoning is None:
            out = self._out
            grey = WrappingWriter(out, _columns, is_dim=True)
            self._reasoning = grey if self._is_terminal else TextWriter(out)
            out.write(self._grey("Thinking...") + "\n")
        self._reasoning.write(text)

    def _end_reasoning(self) -> None:
        if self._reasoning is not None:
            self._reasoning.end()
            self._out.write(self._grey("...done thinking.") + "\n\n")
            self._out.flush()
        self._reasoning = None

    def _grey(self, text: str) -> str:
        return f"{_GREY}{text}{_PLAIN}" if self._is_terminal else text

    def _content_writer(self) -> TextWriter:
        if not (self._is_terminal and self._view.is_wrapped):
            return TextWriter(self._out, is_terminal=self._out.isatty())
        if not self._is_markdown:
            return WrappingWriter(self._out, _columns)
        from tampu.cli.repl.markdown import MarkdownWriter

        return MarkdownWriter(self._out)


def answer(session: Session, view: View, text: str) -> None:
    """Print the answer to a message as it arrives; also sends files that it names.

    Raises:
        TampuError: if the model cannot answer.
        KeyboardInterrupt: if it was stopped; the text so far is printed.
    """
    question, files = files_of(session, text)
    printer = AnswerPrinter(sys.stdout, view, is_markdown=session.format is None)
    try:
        with (
            closing(session.answer(question, files)) as parts,
            Spinner(lambda: session.status) as spinner,
        ):
            for part in parts:
                spinner.stop()
                printer.show(part)
    finally:
        printer.end()
    for warning in session.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    session.warnings.clear()
    dropped = 0 if session.usage is None else session.usage.dropped_tokens
    if dropped:
        print(
            f"warning: {dropped} tokens of the conversation were dropped: they did not fit the "
            "context (num_ctx)",
            file=sys.stderr,
        )
    if session.is_cut and session.format is not None:
        print(
            "warning: the answer was cut before it had its whole format (num_predict, num_ctx, or "
            "the same tokens again and again)",
            file=sys.stderr,
        )
    load_ns, session.load_ns = session.load_ns, 0
    if view.is_verbose and session.usage is not None:
        print(f"\n{timing_lines(session.usage, load_ns)}", file=sys.stderr)


def files_of(session: Session, text: str) -> tuple[str, list[MediaFile]]:
    """Return a message without the paths of its files, and these; print what was found.

    Raises:
        RequestError: for a file that is not an image or a sound.
    """
    question, files, left = take_files(
        text,
        can_see=session.can_see,
        can_hear=session.can_hear,
        needs_projector=session.needs_projector,
    )
    for path, why in left:
        print(f"{path}: {why}", file=sys.stderr, flush=True)
    for file in files:
        kind = "sound" if file.is_sound else "image"
        print(f"Added {kind} '{file.path}'", file=sys.stderr, flush=True)
    return question, files


def _can_move_cursor(out: TextIO) -> bool:
    if not out.isatty():
        return False
    from rich.console import Console

    return not Console(file=out).is_dumb_terminal


def _columns() -> int:
    return shutil.get_terminal_size().columns
