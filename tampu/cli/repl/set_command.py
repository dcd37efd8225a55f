"""`/set`: what can be changed in a conversation."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from contextlib import suppress

from tampu.chat.output.reasoning import EFFORTS
from tampu.cli.parameters import read_format, read_parameter
from tampu.cli.repl.help import SET
from tampu.cli.repl.printing import View
from tampu.cli.repl.reader import Reader
from tampu.cli.repl.session import Session
from tampu.errors import RequestError, TampuError

_Setter = Callable[[str], str | None]


class Assigning:
    """Obeys `/set`."""

    def __init__(self, session: Session, view: View, reader: Reader) -> None:
        """Change these three."""
        self._session = session
        self._view = view
        self._reader = reader
        self._setters: dict[str, _Setter] = {
            "parameter": self._parameter,
            "system": self._system,
            "format": self._format,
            "noformat": lambda _: self._format(""),
            "think": self._think,
            "nothink": self._no_think,
            "verbose": lambda _: self._verbose(is_on=True),
            "quiet": lambda _: self._verbose(is_on=False),
            "wordwrap": lambda _: self._wrapped(is_on=True),
            "nowordwrap": lambda _: self._wrapped(is_on=False),
            "markdown": lambda _: self._markdown(is_on=True),
            "nomarkdown": lambda _: self._markdown(is_on=False),
            "history": lambda _: self._history(is_on=True),
            "nohistory": lambda _: self._history(is_on=False),
        }

    def obey(self, rest: str) -> None:
        """Set what the words after `/set` say, and tell it.

        Raises:
            TampuError: for a value that makes no sense; nothing is changed then.
        """
        what, _, value = rest.partition(" ")
        setter = self._setters.get(what)
        said = setter(value.strip()) if setter else None
        print(said or f"Usage:\n{SET}")

    def _system(self, text: str) -> str:
        self._session.system = text
        return "Set the system message." if text else "There is no system message now."

    def _parameter(self, rest: str) -> str | None:
        name, _, text = rest.partition(" ")
        words = text.split()
        with suppress(ValueError):  # an open quotation mark: the words as they are
            words = shlex.split(text)
        if not words:
            return None
        before = dict(self._session.parameters)
        self._session.parameters[name] = read_parameter(name, words)
        self._checked(lambda: setattr(self._session, "parameters", before))
        return f"Set parameter '{name}' to '{' '.join(words)}'"

    def _format(self, text: str) -> str:
        before = self._session.format
        self._session.format = read_format(text) if text else None
        self._checked(lambda: setattr(self._session, "format", before))
        return f"Set format to {text!r}." if text else "Disabled format."

    def _checked(self, undo: Callable[[], None]) -> None:
        try:
            self._session.check()
        except TampuError:
            undo()
            raise

    def _think(self, level: str) -> str:
        if level and level not in EFFORTS:
            raise RequestError(f"think is {level!r}; it must be {', '.join(EFFORTS)}, or nothing")
        warn_of_thoughts(self._session)
        self._session.think = level or True
        return f"Set 'think' mode to '{level}'." if level else "Set 'think' mode."

    def _no_think(self, _: str) -> str:
        self._session.think = False
        return "Set 'nothink' mode."

    def _verbose(self, *, is_on: bool) -> str:
        self._view.is_verbose = is_on
        return f"Set '{'verbose' if is_on else 'quiet'}' mode."

    def _wrapped(self, *, is_on: bool) -> str:
        self._view.is_wrapped = is_on
        return f"Set '{'' if is_on else 'no'}wordwrap' mode."

    def _markdown(self, *, is_on: bool) -> str:
        self._view.is_markdown = is_on
        return f"Set '{'' if is_on else 'no'}markdown' mode."

    def _history(self, *, is_on: bool) -> str:
        self._reader.keep_history(is_kept=is_on)
        return f"Set '{'' if is_on else 'no'}history' mode."


def warn_of_thoughts(session: Session) -> None:
    """Tell it if the model has no thoughts to show."""
    if not session.can_think:
        print(f"warning: {session.model.name} cannot think; it answers at once", file=sys.stderr)
