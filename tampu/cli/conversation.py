"""The conversation of `tampu run`: a prompt, the answer as it comes, and commands with a slash.

It reads through `Reader` and prints to standard output, so it can be tested without a terminal.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from tampu.cli.parameters import read_parameter
from tampu.cli.run import answer, print_timing
from tampu.cli.session import Session
from tampu.cli.show import as_text
from tampu.errors import RunnerDiedError, TampuError

PROMPT = ">>> "
MORE = "... "
QUOTES = '"""'
HELP = '''\
  /set system TEXT          Set the system message, also with """
  /set parameter NAME VALUE Set a parameter, such as temperature
  /set verbose              Print durations after each answer
  /set quiet                Print no durations
  /show info                What the model is
  /show system              The system message
  /show parameters          The parameters that were set
  /show template            The model's chat template
  /show license             The model's licence
  /clear                    Forget the conversation
  /bye                      Leave
  /?                        This help

  """ begins and ends a message of several lines.
  Ctrl-C stops an answer; Ctrl-D leaves.'''


class Reader(Protocol):
    """Where lines come from."""

    def read(self, prompt: str) -> str:
        """Return a line. Raises EOFError at the end, KeyboardInterrupt when it is abandoned."""
        ...


class TerminalReader:
    """A terminal, with editing, and with a history in a file if it can be written."""

    def __init__(self, history: Path) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.formatted_text import FormattedText
        from prompt_toolkit.history import FileHistory, InMemoryHistory

        try:
            history.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            history.touch(mode=0o600)
            lines: FileHistory | InMemoryHistory = FileHistory(str(history))
        except OSError:
            lines = InMemoryHistory()
        self._session: PromptSession[str] = PromptSession(history=lines)
        self._hint = FormattedText([("fg:ansibrightblack", "Send a message (/? for help)")])

    def read(self, prompt: str) -> str:
        """Return a line."""
        return self._session.prompt(prompt, placeholder=self._hint if prompt == PROMPT else None)


class Conversation:
    """Reads messages and commands until it is told to leave."""

    def __init__(
        self, session: Session, reader: Reader, load_ns: int, *, is_verbose: bool = False
    ) -> None:
        self._session = session
        self._reader = reader
        self._load_ns = load_ns
        self._is_verbose = is_verbose
        self._is_over = False
        self._commands: dict[str, Callable[[list[str], str], None]] = {
            "/set": self._set,
            "/show": self._show,
            "/clear": self._clear,
            "/bye": self._leave,
            "/exit": self._leave,
            "/?": self._help,
            "/help": self._help,
        }

    def run(self) -> None:
        """Converse until `/bye` or the end of the input."""
        while not self._is_over:
            try:
                text = self._read_message()
            except EOFError:
                print()
                return
            except KeyboardInterrupt:
                print("Use Ctrl-D or /bye to leave.")
                continue
            if text.strip():
                self._take(text)

    def _take(self, text: str) -> None:
        """Obey a command or answer a message; an error is told, and the conversation goes on."""
        try:
            if text.startswith("/"):
                self._obey(text)
            else:
                self._answer(text)
        except RunnerDiedError:
            raise
        except TampuError as error:
            print(f"Error: {error}", file=sys.stderr)

    def _answer(self, text: str) -> None:
        try:
            answer(self._session, text)
        except KeyboardInterrupt:
            print("\n", flush=True)
            return
        if self._is_verbose:
            print_timing(self._session, self._load_ns)
            self._load_ns = 0
        print()

    def _obey(self, text: str) -> None:
        name, _, rest = text.strip().partition(" ")
        command = self._commands.get(name)
        if command is None:
            print(f"Unknown command '{name}'. Type /? for help")
            return
        command(rest.split(), rest.strip())

    def _read_message(self) -> str:
        """Return a line, or the text between triple quotes over several."""
        line = self._reader.read(PROMPT)
        before, quotes, text = line.partition(QUOTES)
        if not quotes or (before.strip() and not before.startswith("/set system")):
            return line
        while QUOTES not in text:
            text += "\n" + self._reader.read(MORE)
        return before + text.partition(QUOTES)[0]

    def _set(self, words: list[str], rest: str) -> None:
        match words:
            case ["system", *_]:
                self._session.system = rest.removeprefix("system").strip()
                print("Set the system message.")
            case ["parameter", name, *values] if values:
                self._set_parameter(name, rest)
            case ["verbose"] | ["quiet"]:
                self._is_verbose = words == ["verbose"]
                print(f"Set {words[0]} mode.")
            case _:
                print("Usage: /set system TEXT, /set parameter NAME VALUE, /set verbose|quiet")

    def _set_parameter(self, name: str, rest: str) -> None:
        text = rest.removeprefix("parameter").strip().removeprefix(name).strip()
        words = text.split()
        with suppress(ValueError):  # an open quotation mark: the words as they are
            words = shlex.split(text)
        before = dict(self._session.parameters)
        self._session.parameters[name] = read_parameter(name, words)
        try:
            self._session.check()
        except TampuError:
            self._session.parameters = before
            raise
        print(f"Set parameter '{name}' to '{' '.join(words)}'")

    def _show(self, words: list[str], _: str) -> None:
        info = self._session.model.info
        parameters = [f"{name:<30}{value}" for name, value in self._session.parameters.items()]
        shown = {
            "info": as_text(info),
            "system": self._session.system or "No system message was set.",
            "parameters": "\n".join(parameters) or "No parameters were set.",
            "template": info.template or "The model has no chat template.",
            "license": info.license or "The model states no licence.",
        }
        what = " ".join(words)
        print(shown.get(what, f"Usage: /show {'|'.join(shown)}"))

    def _clear(self, _: list[str], __: str) -> None:
        self._session.clear()
        print("Cleared the conversation.")

    def _leave(self, _: list[str], __: str) -> None:
        self._is_over = True

    def _help(self, _: list[str], __: str) -> None:
        print(HELP)


def converse(session: Session, load_ns: int, *, is_verbose: bool) -> None:
    """Converse on the terminal."""
    from tampu.settings import Settings

    history = Settings.from_environment().cache / "history"
    Conversation(session, TerminalReader(history), load_ns, is_verbose=is_verbose).run()
