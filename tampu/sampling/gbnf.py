"""GBNF, llama.cpp's grammars, as the grammars of llguidance.

    root  ::= "yes" | "no" reason?
    reason ::= " because " [a-z ]{1,40}

llguidance cuts its text into lexemes, and the longest lexeme wins; GBNF has no lexemes. So each
regular rule (one that does not lead back to itself) becomes a single lexeme: there the two agree.
Between the lexemes of recursive rules the longest match wins.

Source for the syntax: the README of llama.cpp's grammars. No function here recurses, so that the
depth of a grammar is not limited by the stack.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from tampu.errors import GrammarError

MAX_NESTING = 200
_MAX_REPETITIONS = 1_000  # repetitions; more make the grammar too large anyway

Item: TypeAlias = tuple["_Group | _Rule | str", str]  # what is repeated, and how

_TOKEN = re.compile(
    r"""
      (?P<space>   [ \t]+ | \#[^\r\n]* )
    | (?P<newline> \r\n? | \n )
    | (?P<define>  ::= )
    | (?P<name>    [A-Za-z][A-Za-z0-9_-]* )
    | (?P<literal> " (?: [^"\\\r\n] | \\. )* " )
    | (?P<class>   \[ \^? (?: [^\]\\\r\n] | \\. )* \] )
    | (?P<token>   < (?: \[ [0-9]+ \] | [^<>\s\[\]]+ ) > )
    | (?P<times>   [*+?] | \{ [ ]* [0-9]* [ ]* ,? [ ]* [0-9]* [ ]* \} )
    | (?P<mark>    [|().] )
    """,
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r"}
_ANY = "/(?s:.)/"
_NONE = r"/[^\u{0}-\u{10FFFF}]/"


@dataclass(slots=True, eq=False)
class _Group:
    """Alternatives, each a sequence; what a rule or a pair of parentheses holds."""

    alternatives: list[list[Item]] = field(default_factory=lambda: [[]])


@dataclass(slots=True, eq=False)
class _Rule:
    """A reference to a rule."""

    name: str


def lark_of_gbnf(text: str) -> str:
    """Return the grammar in llguidance's dialect of Lark.

    Raises:
        GrammarError: naming the line, for invalid GBNF, missing rules and too deep nesting.
    """
    rules = _parse(text)
    if "root" not in rules:
        raise GrammarError("grammar: there is no rule named root")
    used = {
        name: {atom.name for atom in _atoms(rules[name]) if isinstance(atom, _Rule)}
        for name in rules
    }
    for name in rules:
        if missing := sorted(used[name] - rules.keys()):
            raise GrammarError(f"grammar: the rule {missing[0]}, which {name} uses, is missing")
    lexemes = _lexemes(rules, used)
    names = {
        name: f"{'R' if name in lexemes else 'r'}{number}" for number, name in enumerate(rules)
    }
    lines = [f"{names[name]}: {_written(rules[name], names)}" for name in rules]
    return "\n".join([f"start: {names['root']}", *lines])


def _parse(text: str) -> dict[str, _Group]:
    rules: dict[str, _Group] = {}
    open_groups: list[_Group] = []
    waiting_name: str | None = None
    line = 1
    tokens = _tokens(text)
    for index, (kind, value, line) in enumerate(tokens):
        if kind == "newline":
            continue
        follows = tokens[index + 1][0] if index + 1 < len(tokens) else "end"
        if kind == "name" and follows == "define" and len(open_groups) <= 1:
            waiting_name, open_groups = value, []
        elif kind == "define" and waiting_name is not None:
            if waiting_name in rules:
                raise _wrong(line, f"the rule {waiting_name} is there twice")
            rules[waiting_name] = _Group()
            open_groups, waiting_name = [rules[waiting_name]], None
        elif not open_groups:
            raise _wrong(line, f"{value!r} stands in no rule")
        else:
            _take(kind, value, line, open_groups)
    if len(open_groups) > 1:
        raise _wrong(line, "a parenthesis is not closed")
    return rules


def _tokens(text: str) -> list[tuple[str, str, int]]:
    tokens: list[tuple[str, str, int]] = []
    line, position = 1, 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if not match or not match.lastgroup:
            raise _wrong(line, f"{text[position : position + 20]!r} is not understood")
        position = match.end()
        if match.lastgroup != "space":
            tokens.append((match.lastgroup, match.group(), line))
        line += match.lastgroup == "newline"
    return tokens


def _take(kind: str, value: str, line: int, open_groups: list[_Group]) -> None:
    """Add one token to the innermost open group."""
    sequence = open_groups[-1].alternatives[-1]
    if kind == "times":
        if not sequence or sequence[-1][1]:
            raise _wrong(line, f"{value!r} repeats nothing")
        sequence[-1] = (sequence[-1][0], _times(value, line))
    elif value == "|":
        open_groups[-1].alternatives.append([])
    elif value == ")" and len(open_groups) > 1:
        open_groups.pop()
    else:
        item = _Group() if value == "(" else _atom(kind, value, line)
        sequence.append((item, ""))
        if isinstance(item, _Group):
            if len(open_groups) > MAX_NESTING:
                raise _wrong(line, f"it is nested more than {MAX_NESTING} deep")
            open_groups.append(item)


def _atom(kind: str, value: str, line: int) -> _Rule | str:
    match kind:
        case "name":
            return _Rule(value)
        case "literal":
            return json.dumps(_unescaped(value[1:-1], line), ensure_ascii=False)
        case "class":
            return _class(value, line)
        case "token":
            return value
    if value == ".":
        return _ANY
    raise _wrong(line, f"{value!r} has no place here")


def _times(value: str, line: int) -> str:
    if not value.startswith("{"):
        return value
    low, comma, high = value[1:-1].replace(" ", "").partition(",")
    numbers = [int(number) for number in (low, high) if number]
    if (
        not numbers
        or max(numbers) > _MAX_REPETITIONS
        or (len(numbers) == 2 and numbers[0] > numbers[1])
    ):
        raise _wrong(line, f"{value!r} must count up, to {_MAX_REPETITIONS} at most")
    return f"{{{low or 0}{comma}{high}}}"


def _unescaped(text: str, line: int) -> str:
    def character(match: re.Match[str]) -> str:
        code = match[1] or match[2] or match[3]
        if not code:
            return _ESCAPED.get(match[4], match[4])
        if int(code, 16) > 0x10FFFF or 0xD800 <= int(code, 16) < 0xE000:
            raise _wrong(line, f"{match.group()} is not a valid character")
        return chr(int(code, 16))

    return _ESCAPE.sub(character, text)


def _class(value: str, line: int) -> str:
    """Return a class of characters as a regular expression in which every one is escaped."""
    inside = value[1:-1]
    negated = inside.startswith("^")
    items = re.findall(r"\\(?:x..|u.{4}|U.{8}|.)|.", inside[negated:], re.DOTALL)
    characters = [(_unescaped(item, line), item) for item in items]
    parts: list[str] = []
    index = 0
    while index < len(characters):
        first = characters[index][0]
        if characters[index + 1 : index + 2] == [("-", "-")] and index + 2 < len(characters):
            last = characters[index + 2][0]
            if last < first:
                raise _wrong(line, f"the range {first}-{last} goes down")
            parts.append(f"{_code(first)}-{_code(last)}")
            index += 3
        else:
            parts.append(_code(first))
            index += 1
    if not parts:
        return _ANY if negated else _NONE
    return f"/[{'^' if negated else ''}{''.join(parts)}]/"


def _code(character: str) -> str:
    return f"\\u{{{ord(character):X}}}"


def _atoms(group: _Group) -> Iterator[_Rule | str]:
    """Yield everything in a rule that is not a group."""
    waiting = [group]
    while waiting:
        for sequence in waiting.pop().alternatives:
            for item, _ in sequence:
                if isinstance(item, _Group):
                    waiting.append(item)
                else:
                    yield item


def _has_tokens(group: _Group) -> bool:
    return any(isinstance(atom, str) and atom.startswith("<") for atom in _atoms(group))


def _lexemes(rules: dict[str, _Group], used: dict[str, set[str]]) -> set[str]:
    """Return the rules that are regular: without tokens, built of regular rules alone."""
    candidates = {name for name in rules if not _has_tokens(rules[name])}
    regular: set[str] = set()
    while more := {name for name in candidates - regular if used[name] <= regular}:
        regular |= more
    return regular


def _written(group: _Group, names: dict[str, str]) -> str:
    """Return a rule's body; groups in it are written without recursion, innermost first."""
    done: dict[int, str] = {}
    waiting = [group]
    while waiting:
        current = waiting[-1]
        inner = [
            item
            for sequence in current.alternatives
            for item, _ in sequence
            if isinstance(item, _Group) and id(item) not in done
        ]
        if inner:
            waiting += inner
            continue
        waiting.pop()
        alternatives = [
            " ".join(_item(item, times, names, done) for item, times in sequence) or '""'
            for sequence in current.alternatives
        ]
        done[id(current)] = " | ".join(alternatives)
    return done[id(group)]


def _item(
    item: _Group | _Rule | str, times: str, names: dict[str, str], done: dict[int, str]
) -> str:
    if isinstance(item, _Group):
        return f"({done[id(item)]}){times}"
    return (names[item.name] if isinstance(item, _Rule) else item) + times


def _wrong(line: int, reason: str) -> GrammarError:
    return GrammarError(f"grammar: line {line}: {reason}")
