"""A template's text as tokens: text outside of actions, and words inside of `{{ ... }}`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from tampu.errors import ModelFileError

MAX_CHARACTERS = 1 << 20

_SPACES = " \t\r\n"
_COMMENT = re.compile(r"[ \t\r\n]*/\*.*?\*/", re.DOTALL)
_LEFT_TRIM = re.compile(r"-[ \t\r\n]")
_RIGHT = re.compile(r"[ \t\r\n]-\}\}|\}\}")
_WORD = re.compile(
    r"""(?P<space>[ \t\r\n]+)
    |(?P<field>\.[^\W\d]\w*)
    |(?P<variable>\$\w*)
    |(?P<number>[+-]?(?:0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+
        |(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d+)?))(?!\w)
    |(?P<word>[^\W\d]\w*)
    |(?P<string>"(?:[^"\\\n]|\\.)*")
    |(?P<raw>`[^`]*`)
    |(?P<character>'(?:[^'\\\n]|\\.)+')
    |(?P<mark>:=|[.()|=,])""",
    re.VERBOSE,
)
_ESCAPE = re.compile(
    r"\\(?:([abfnrtv\\'\"])|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3})|(.))",
    re.DOTALL,
)
_NAMED_ESCAPES = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "\\": "\\", "'": "'", '"': '"',
}  # fmt: skip
_LARGEST_INTEGER = (1 << 63) - 1


class Kind(Enum):
    """The kinds of tokens."""

    TEXT = "text"
    LEFT = "{{"
    RIGHT = "}}"
    SPACE = "space"
    FIELD = "field"
    VARIABLE = "variable"
    NUMBER = "number"
    WORD = "word"
    STRING = "string"
    MARK = "mark"
    END = "end of the template"


@dataclass(frozen=True, slots=True)
class Token:
    """A token: its text or value, and the line on which it begins."""

    kind: Kind
    text: str
    line: int
    number: int | float = 0


def broken(line: int, reason: str) -> ModelFileError:
    """Return the error of a template that cannot be parsed."""
    return ModelFileError("template", f"line {line}: {reason}")


def tokens(source: str) -> Iterator[Token]:
    """Yield the tokens of a template, `Kind.END` last.

    Raises:
        ModelFileError: for an invalid template, with the line.
    """
    if len(source) > MAX_CHARACTERS:
        raise broken(1, f"the template has more than {MAX_CHARACTERS} characters")
    position, line, trims = 0, 1, False
    while True:
        begin = source.find("{{", position)
        text = source[position:] if begin < 0 else source[position:begin]
        shown = text.lstrip(_SPACES) if trims else text
        if begin >= 0 and _LEFT_TRIM.match(source, begin + 2):
            shown = shown.rstrip(_SPACES)
        if shown:
            yield Token(Kind.TEXT, shown, line)
        line += text.count("\n")
        if begin < 0:
            yield Token(Kind.END, "", line)
            return
        inside = begin + 2 + (1 if _LEFT_TRIM.match(source, begin + 2) else 0)
        found: list[Token] = []
        position, trims = _action(source, inside, line, found)
        yield from found
        line += source.count("\n", begin, position)


def _action(source: str, position: int, line: int, found: list[Token]) -> tuple[int, bool]:
    """Collect the tokens of one action; return where it ends, and whether it trims what follows."""
    comment = _COMMENT.match(source, position)
    if comment:
        end = _RIGHT.match(source, comment.end())
        if end is None:
            raise broken(line, "a comment must fill its action")
        return end.end(), len(end[0]) > 2
    found.append(Token(Kind.LEFT, "{{", line))
    while True:
        end = _RIGHT.match(source, position)
        if end:
            found.append(Token(Kind.RIGHT, "}}", line))
            return end.end(), len(end[0]) > 2
        match = _WORD.match(source, position)
        if match is None:
            raise _unreadable(source[position : position + 10].partition("\n")[0], line, found[0])
        found.append(_token(match, line))
        line += match[0].count("\n")
        position = match.end()
        if match.lastgroup == "space" and source.startswith("-}}", position):
            position -= 1  # the space belongs to the mark that trims


def _unreadable(rest: str, line: int, left: Token) -> ModelFileError:
    """Return the error of an action where no token begins; `rest` is what follows on the line."""
    if not rest or rest.startswith("{{"):
        return broken(left.line, "an action is not closed: }} is missing")
    if rest.startswith("/*"):
        return broken(line, "a comment is not closed: */}} is missing")
    if rest[0] in "\"'`":
        return broken(line, f"the quote {rest[0]} is not closed")
    hint = ": actions end with }}" if rest[0] == "}" else ""
    return broken(line, f"unexpected {rest!r} in an action{hint}")


def _token(match: re.Match[str], line: int) -> Token:
    text = match[0]
    match match.lastgroup:
        case "string":
            return Token(Kind.STRING, _unquoted(text, line), line)
        case "raw":
            return Token(Kind.STRING, text[1:-1].replace("\r", ""), line)
        case "character":
            character = _unquoted(text, line)
            if len(character) != 1:
                raise broken(line, f"{text} is not one character")
            return Token(Kind.NUMBER, text, line, ord(character))
        case "number":
            return Token(Kind.NUMBER, text, line, _number(text, line))
        case "field":
            return Token(Kind.FIELD, text[1:], line)
        case name:
            return Token(Kind(name), text, line)


def _number(text: str, line: int) -> int | float:
    plain = text.replace("_", "").lower()
    try:
        if "x" not in plain and ("." in plain or "e" in plain):
            return float(plain)
        digits = plain.lstrip("+-")
        old_octal = len(digits) > 1 and digits[0] == "0" and digits.isdecimal()
        value = int(plain, 8) if old_octal else int(plain, 0)
    except ValueError as error:
        raise broken(line, f"{text[:40]} is not a valid number") from error
    if not -_LARGEST_INTEGER - 1 <= value <= _LARGEST_INTEGER:
        raise broken(line, f"{text[:40]} is too large a number")
    return value


def _unquoted(text: str, line: int) -> str:
    def replaced(match: re.Match[str]) -> str:
        name, *digits, octal, other = match.groups()
        if name:
            return _NAMED_ESCAPES[name]
        if other:
            raise broken(line, f"unknown escape \\{other}")
        code = int(octal, 8) if octal else int(next(d for d in digits if d), 16)
        if code > 0x10FFFF or 0xD800 <= code < 0xE000:
            raise broken(line, f"{match[0]} is not a valid character")
        return chr(code)

    return _ESCAPE.sub(replaced, text[1:-1])
