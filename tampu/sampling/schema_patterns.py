"""Regular expressions of JSON schemas as JavaScript has them."""

from __future__ import annotations

import re

_PART = re.compile(
    r"""
      (?P<group>\(\?(?:[=!]|<[=!]))      # a look-around begins
    | (?P<boundary>\\[bB])
    | (?P<reference>\\[1-9]\d*|\\k<[^>]*>)
    | (?P<other>\\.|[()\[]|[^\\()\[]+)
    """,
    re.VERBOSE | re.DOTALL,
)
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)


def without_assertions(pattern: str) -> str | None:
    r"""Return a pattern without its look-arounds and `\b`, which no engine for grammars has.

    It matches all that the pattern matches, and maybe more. None: it refers to its groups.
    """
    kept: list[str] = []
    position, depth, skipped = 0, 0, []  # the depths at which look-arounds began
    while position < len(pattern):
        found = _CLASS.match(pattern, position) or _PART.match(pattern, position)
        if found is None:
            return pattern  # not a regular expression: the compiler says why
        position = found.end()
        kind, text = found.lastgroup, found.group()
        if kind == "reference":
            return None
        if kind == "group" or text == "(":
            depth += 1
        if kind == "group":
            skipped.append(depth)
        elif not skipped and kind != "boundary":
            kept.append(text)
        if text == ")":
            if skipped and skipped[-1] == depth:
                skipped.pop()
            depth -= 1
    return "".join(kept)
