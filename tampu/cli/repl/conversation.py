"""The loop of a conversation: reads messages and commands until the user leaves.

It reads through `Reader` and prints to standard output, so it can be tested without a terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from tampu.chat.output import Content
from tampu.cli.repl.help import HELP, SHOW
from tampu.cli.repl.media_files import mentions
from tampu.cli.repl.printing import AnswerPrinter, View, answer
from tampu.cli.repl.reader import MORE, PROMPT, Reader, without_quotes
from tampu.cli.repl.session import Session
from tampu.cli.repl.set_command import SetCommand
from tampu.cli.repl.wrapping import without_controls
from tampu.cli.show import as_text
from tampu.errors import TampuError
from tampu.store.modelfile import Modelfile, format_modelfile, parameter_texts


class Conversation:
    """Runs the commands and answers the messages of a reader."""

    def __init__(self, session: Session, reader: Reader, view: View) -> None:
        """Read into this session."""
        self._session = session
        self._reader = reader
        self._view = view
        self._is_over = False
        self._commands: dict[str, Callable[[str], None]] = {
            "/set": SetCommand(session, view, reader).run,
            "/show": lambda what: print(shown(session, what)),
            "/load": self._load,
            "/save": self._save,
            "/clear": self._clear,
            "/list": session.print_list,
            "/bye": self._leave,
            "/exit": self._leave,
            "/?": self._help,
            "/help": self._help,
        }

    def run(self) -> None:
        """Converse until `/bye` or the end of the input."""
        self._print_messages()
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
        """Run a command or answer a message; print an error and continue."""
        try:
            if self._is_command(text):
                name, _, rest = text.strip().partition(" ")
                if command := self._commands.get(name):
                    command(rest.strip())
                else:
                    print(f"Unknown command '{name}'. Type /? for help")
            else:
                self._answer(text)
        except TampuError as error:
            print(f"Error: {error}", file=sys.stderr)
        except KeyboardInterrupt:
            return

    def _answer(self, text: str) -> None:
        """Print an answer, and an empty line after what was said."""
        try:
            answer(self._session, self._view, text)
        except KeyboardInterrupt:
            print(flush=True)
            raise
        print(flush=True)

    def _is_command(self, text: str) -> bool:
        """Whether a text starts with a slash, and not with the path of a file for the model."""
        if not text.startswith("/"):
            return False
        first = next(mentions(text), None)
        if first is None or first.start > 0:
            return True
        return not (self._session.can_hear if first.is_sound else self._session.can_see)

    def _load(self, name: str) -> None:
        if not name:
            print("Usage:\n  /load MODEL")
            return
        self._session.change(name)
        print(f"Loaded '{name}'.")
        self._print_messages()

    def _save(self, name: str) -> None:
        if not name:
            print("Usage:\n  /save MODEL")
        elif not self._session.is_model(name):
            self._session.save(name)
            print(f"Created new model '{name}'")
        elif self._reader.confirm(f"There is a model '{name}'. Replace it?"):
            self._session.save(name)
            print(f"Replaced model '{name}'")
        else:
            print("Not saved.")

    def _print_messages(self) -> None:
        """Print the messages that come with the model."""
        for message in self._session.messages:
            if message["role"] == "user":
                print(PROMPT + without_controls(message["content"]).replace("\n", f"\n{MORE}"))
            elif message["role"] == "assistant":
                printer = AnswerPrinter(sys.stdout, self._view)
                printer.show(Content(message["content"]))
                printer.end()
                print()

    def _clear(self, _: str) -> None:
        self._session.messages.clear()
        print("Cleared the conversation.")

    def _leave(self, _: str) -> None:
        self._is_over = True

    def _help(self, topic: str) -> None:
        print(HELP.get(topic.removeprefix("/"), HELP[""]))


def shown(session: Session, what: str) -> str:
    """Return what `/show` prints for a word.

    Raises:
        TampuError: if a Modelfile cannot express a text.
    """
    info = session.model.info
    match what:
        case "info":
            own = Modelfile(parameters=session.parameters, system=session.system or None)
            return as_text(info, own)
        case "license":
            return without_controls(info.license) or "The model has no license."
        case "modelfile":
            return without_controls(format_modelfile(session.modelfile())).rstrip()
        case "parameters":
            return "\n".join(parameter_texts(session.parameters)) or "No parameters are set."
        case "system":
            return without_controls(session.system) or "No system message is set."
        case "template":
            return without_controls(info.template) or "The model has no chat template."
        case _:
            return f"Usage:\n{SHOW}"
