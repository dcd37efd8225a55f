"""`/set`: changes a parameter or a setting of a conversation."""

from __future__ import annotations

import shlex
import textwrap
from contextlib import suppress

from tampu.chat.output.reasoning import EFFORTS
from tampu.cli.parameters import REQUESTED, read_format, read_parameter
from tampu.cli.repl.help import SET
from tampu.cli.repl.printing import View
from tampu.cli.repl.reader import Reader
from tampu.cli.repl.session import Session, check
from tampu.errors import RequestError
from tampu.sampling.parameters import find_parameter

# The field of the view that a word sets, and its value.
_VIEW = {
    "verbose": ("is_verbose", True),
    "quiet": ("is_verbose", False),
    "wordwrap": ("is_wrapped", True),
    "nowordwrap": ("is_wrapped", False),
    "markdown": ("is_markdown", True),
    "nomarkdown": ("is_markdown", False),
}
_WITHOUT_VALUE = {*_VIEW, "history", "nohistory", "nothink", "noformat"}


class SetCommand:
    """The command `/set`."""

    def __init__(self, session: Session, view: View, reader: Reader) -> None:
        """Change these three."""
        self._session = session
        self._view = view
        self._reader = reader

    def run(self, rest: str) -> None:
        """Set what the words after `/set` say, and print it.

        Raises:
            TampuError: for an invalid value; nothing is changed then.
        """
        what, _, value = rest.partition(" ")
        if value.strip() and what in _WITHOUT_VALUE:
            raise RequestError(f"/set {what} has no value, but {value.strip()!r} follows")
        unknown = f"There is no setting {what!r}.\n\n" if what else ""
        print(self._set(what, value.strip()) or f"{unknown}Usage:\n{SET}")

    def _set(self, what: str, value: str) -> str | None:
        """Return a sentence about what was set; None for an unknown word."""
        if what in _VIEW:
            setattr(self._view, *_VIEW[what])
        elif what in ("history", "nohistory"):
            self._reader.keep_history(is_kept=what == "history")
        elif what == "nothink":
            self._session.think = False
        elif what == "think":
            return self._think(value)
        elif what == "system":
            self._session.system = value
            return "Set the system message." if value else "Removed the system message."
        elif what in ("format", "noformat"):
            return self._format(value if what == "format" else "")
        else:
            return self._parameter(value) if what == "parameter" else None
        return f"Set '{what}' mode."

    def _parameter(self, rest: str) -> str:
        name, _, text = rest.partition(" ")
        words = text.split()
        with suppress(ValueError):  # an open quotation mark: the words as they are
            words = shlex.split(text)
        if not words:
            return _missing(name)
        changed = self._session.parameters | {name: read_parameter(name, words)}
        check(changed, self._session.format)
        self._session.parameters = changed
        return f"Set parameter '{name}' to '{' '.join(words)}'"

    def _format(self, text: str) -> str:
        form = read_format(text) if text else None
        ignored = check(self._session.parameters, form)
        self._session.format = form
        if not text:
            return "Disabled format."
        warnings = (f"warning: format: {line}" for line in ignored)
        return "\n".join([f"Set format to {text!r}.", *warnings])

    def _think(self, level: str) -> str:
        if level and level not in EFFORTS:
            raise RequestError(f"think is {level!r}; it must be {', '.join(EFFORTS)}, or nothing")
        if not self._session.can_reason:
            return f"{self._session.model.name} cannot reason; it answers without reasoning."
        self._session.think = level or True
        return f"Set 'think' mode to '{level}'." if level else "Set 'think' mode."


def _missing(name: str) -> str:
    """Return how to set a parameter, after `/set parameter` with a name or without.

    Raises:
        RequestError: for an unknown name.
    """
    expected = f": {find_parameter(name, REQUESTED).range_text}" if name else ""
    names = textwrap.fill(", ".join(sorted(REQUESTED)), 76)
    missing = f"the value of {name} is missing" if name else "the name and the value are missing"
    return (
        f"Usage:\n  /set parameter {name or 'NAME'} VALUE{expected}\n\n"
        f"{missing.capitalize()}. The parameters are:\n{textwrap.indent(names, '  ')}"
    )
