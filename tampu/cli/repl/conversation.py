"""Reads messages and commands until it is told to leave.

It reads through `Reader` and prints to standard output, so it can be tested without a terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from tampu.chat.output import Content
from tampu.cli.repl.help import HELP
from tampu.cli.repl.images import mentions
from tampu.cli.repl.printing import AnswerPrinter, View, answer
from tampu.cli.repl.reader import MORE, PROMPT, Reader, without_quotes
from tampu.cli.repl.session import Session
from tampu.cli.repl.set_command import Assigning
from tampu.cli.repl.show_command import shown
from tampu.cli.repl.wrapping import harmless
from tampu.errors import TampuError


class Conversation:
    """Obeys and answers what a reader gives."""

    def __init__(self, session: Session, reader: Reader, view: View) -> None:
        """Converse in this session."""
        self._session = session
        self._reader = reader
        self._view = view
        self._is_over = False
        self._assigning = Assigning(session, view, reader)
        self._commands: dict[str, Callable[[str], None]] = {
            "/set": self._assigning.obey,
            "/show": lambda what: print(shown(session, what)),
            "/load": self._load,
            "/save": self._save,
            "/clear": self._clear,
            "/list": self._list,
            "/bye": self._leave,
            "/exit": self._leave,
            "/?": self._help,
            "/help": self._help,
        }

    def run(self) -> None:
        """Converse until `/bye` or the end of the input."""
        self._repeat_messages()
        while not self._is_over:
            try:
                text = without_quotes(self._reader.read())
            except EOFError:
                print()
                return
            except KeyboardInterrupt as interrupt:
                if not interrupt.args:
                    print("Use Ctrl-D or /bye to leave.")
                continue
            if text.strip():
                self._take(text)

    def _take(self, text: str) -> None:
        """Obey a command or answer a message; an error is told, and the conversation goes on."""
        try:
            if self._is_command(text):
                self._obey(text)
            else:
                self._answer(text)
        except TampuError as error:
            print(f"Error: {error}", file=sys.stderr)
        except KeyboardInterrupt:
            return

    def _answer(self, text: str) -> None:
        try:
            answer(self._session, self._view, text)
        finally:
            print(flush=True)

    def _is_command(self, text: str) -> bool:
        """Whether a text begins with a slash, and not with the path of a picture."""
        if not text.startswith("/"):
            return False
        first = next(mentions(text), None) if self._session.can_see else None
        return first is None or first.start > 0

    def _obey(self, text: str) -> None:
        name, _, rest = text.strip().partition(" ")
        command = self._commands.get(name)
        if command is None:
            print(f"Unknown command '{name}'. Type /? for help")
        else:
            command(rest.strip())

    def _load(self, name: str) -> None:
        if not name:
            print("Usage:\n  /load MODEL")
            return
        self._session.change(name)
        print(f"Loaded '{name}'.")
        self._repeat_messages()

    def _save(self, name: str) -> None:
        if name:
            self._session.save(name)
            print(f"Created new model '{name}'")
        else:
            print("Usage:\n  /save MODEL")

    def _repeat_messages(self) -> None:
        """Show the conversation that a model begins with."""
        for message in self._session.messages:
            if message["role"] == "user":
                print(PROMPT + harmless(message["content"]).replace("\n", f"\n{MORE}"))
            elif message["role"] == "assistant":
                printer = AnswerPrinter(sys.stdout, self._view)
                printer.show(Content(message["content"]))
                printer.end()
                print()

    def _clear(self, _: str) -> None:
        self._session.clear()
        print("Cleared the conversation.")

    def _list(self, prefix: str) -> None:
        self._session.backend.print_list(prefix)

    def _leave(self, _: str) -> None:
        self._is_over = True

    def _help(self, topic: str) -> None:
        print(HELP.get(topic.removeprefix("/"), HELP[""]))
