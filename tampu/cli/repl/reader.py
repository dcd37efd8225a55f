"""Messages from a terminal with editing, a history and completion."""

from __future__ import annotations

import sys
import termios
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from prompt_toolkit import PromptSession, prompt
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory

from tampu.cli.completion import complete_model
from tampu.cli.parameters import REQUESTED
from tampu.cli.repl.help import TOPICS
from tampu.cli.repl.keys import key_bindings

PROMPT = ">>> "
MORE = "... "
QUOTES = '"""'
_GREY = "fg:ansibrightblack"
_MAX_BYTES = 1 << 20
_INPUT, _LOCAL = 0, 3  # indices in the list that termios returns


class Reader(Protocol):
    """A source of messages."""

    def read(self) -> str:
        """Return a message; in triple quotes it has several lines.

        Raises:
            EOFError: at the end.
            KeyboardInterrupt: if it is discarded; with its text as an argument, if there is any.
        """

    def confirm(self, question: str) -> bool:
        """Return whether the answer to a question is yes."""

    def keep_history(self, *, is_kept: bool) -> None:
        """Write messages to the history from now on, or stop writing them."""


def is_open(text: str) -> bool:
    """Whether a text has triple quotes that are not closed."""
    before, quotes, inside = text.partition(QUOTES)
    is_message = not before.strip() or before.lstrip().startswith("/set system")
    return bool(quotes) and is_message and QUOTES not in inside


def without_quotes(text: str) -> str:
    """Return a text without its triple quotes and what follows them."""
    before, quotes, inside = text.partition(QUOTES)
    if not quotes or (before.strip() and not before.lstrip().startswith("/set system")):
        return text
    return before + inside.partition(QUOTES)[0]


class History(FileHistory):
    """Messages of this and earlier sessions, in a file that only the user can read.

    Attributes:
        is_kept: whether new messages are written.
    """

    def __init__(self, path: Path, *, is_kept: bool) -> None:
        super().__init__(str(path))
        self._path = path
        self.is_kept = is_kept

    def load_history_strings(self) -> Iterable[str]:
        """Return the earlier messages, the newest first; none if the file cannot be read."""
        try:
            self._shorten()
            return list(super().load_history_strings())
        except OSError:
            return []

    def store_string(self, string: str) -> None:
        """Write a message; if that fails, stop writing."""
        if not self.is_kept:
            return
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._path.touch(mode=0o600)
            super().store_string(string)
        except OSError:
            self.is_kept = False

    def _shorten(self) -> None:
        """Remove the older half of a file that is too large."""
        if self._path.exists() and self._path.stat().st_size > _MAX_BYTES:
            _, _, rest = self._path.read_bytes()[_MAX_BYTES // 2 :].partition(b"\n\n")
            self._path.write_bytes(rest)


class CommandCompleter(Completer):
    """Completes commands, their arguments and the names of models."""

    def get_completions(self, document: Document, _: CompleteEvent) -> Iterable[Completion]:
        """Yield the completions of the last word of a line that starts with a slash."""
        line = document.text_before_cursor
        if not line.startswith("/") or "\n" in line:
            return
        *before, word = line.split(" ")
        for choice in choices(before, word):
            yield Completion(choice, start_position=-len(word))


def choices(before: list[str], word: str) -> list[str]:
    """Return the completions of a word, after the words before it."""
    if before in (["/load"], ["/save"]):
        return complete_model(word)
    is_parameter = before == ["/set", "parameter"]
    known = REQUESTED if is_parameter else TOPICS.get(" ".join(before), ())
    return sorted(name for name in known if name.startswith(word))


class TerminalReader:
    """Reads messages from this process's terminal."""

    def __init__(self, history: Path, *, is_kept: bool, editor: str | None = None) -> None:
        """Read from the terminal.

        Args:
            history: the file of the history.
            is_kept: whether new messages are written there.
            editor: the command that edits a message; None: that of VISUAL or EDITOR.
        """
        self._history = History(history, is_kept=is_kept)
        self._hint = FormattedText([(_GREY, "Send a message (/? for help)")])
        self._session: PromptSession[str] = PromptSession(
            history=self._history,
            multiline=True,
            prompt_continuation=lambda *_: MORE,
            key_bindings=key_bindings(is_open, editor),
            completer=CommandCompleter(),
            complete_while_typing=False,
            enable_suspend=True,
            tempfile_suffix=".md",
        )

    def read(self) -> str:
        """Return a message."""
        try:
            return self._session.prompt(PROMPT, placeholder=self._hint)
        except KeyboardInterrupt:
            begun = self._session.default_buffer.text
            raise KeyboardInterrupt(*([begun] if begun else [])) from None

    def confirm(self, question: str) -> bool:
        """Ask for a yes; anything else, Ctrl-C and the end of the input are a no."""
        try:
            return prompt(f"{question} [y/N] ").strip().lower() in ("y", "yes")
        except (EOFError, KeyboardInterrupt):
            return False

    def keep_history(self, *, is_kept: bool) -> None:
        """Write messages to the history from now on, or stop writing them."""
        self._history.is_kept = is_kept


@contextmanager
def echo_off() -> Iterator[None]:
    """Turn the terminal's echo off, and leave Enter as Enter; Ctrl-C still interrupts.

    Otherwise text typed during an answer would be echoed into it, and its Enter become Ctrl-J.
    """
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    silent = termios.tcgetattr(sys.stdin)
    silent[_INPUT] &= ~termios.ICRNL
    silent[_LOCAL] &= ~termios.ECHO
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
