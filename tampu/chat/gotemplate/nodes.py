"""The parse tree of a template, and questions to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant: text, number, true, false or nil."""

    value: str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Field:
    """Fields of the current value, `.A.B`; without names the value itself, `.`."""

    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable, `$x`; `$` alone is the value that the template was given."""

    name: str


@dataclass(frozen=True, slots=True)
class Chain:
    """Fields of an operand's value, `(...).A.B` or `$x.A`."""

    operand: Operand
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Function:
    """A function's name."""

    name: str


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Commands, each given the result of the one before, and variables for the last result.

    Attributes:
        commands: each a function or a value first, then its arguments.
        names: of the variables; two at most, and two only in a range.
        is_assignment: whether the variables exist already.
        line: of its start.
    """

    commands: tuple[tuple[Operand, ...], ...]
    names: tuple[str, ...] = ()
    is_assignment: bool = False
    line: int = 0


Operand: TypeAlias = Literal | Field | Variable | Chain | Function | Pipeline


@dataclass(frozen=True, slots=True)
class Text:
    """Text that is written as it is."""

    text: str


@dataclass(frozen=True, slots=True)
class Action:
    """A pipeline whose result is written, unless it goes into a variable."""

    pipeline: Pipeline


@dataclass(frozen=True, slots=True)
class Branch:
    """`if`: one list of nodes or another. `with`: the same, the result becoming the current value.

    `range`: the first list for each item, the second if there is none.
    """

    keyword: str  # one of these three
    pipeline: Pipeline
    body: Nodes
    otherwise: Nodes


@dataclass(frozen=True, slots=True)
class Call:
    """A defined template, with the pipeline's result as its value."""

    name: str
    pipeline: Pipeline | None
    line: int


@dataclass(frozen=True, slots=True)
class Jump:
    """`continue` with the next item of a range, or `break`."""

    keyword: str


Node: TypeAlias = Text | Action | Branch | Call | Jump
Nodes: TypeAlias = tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Template:
    """A whole template.

    Attributes:
        source: its text.
        nodes: what it writes.
        definitions: the templates that it defines, by their names.
    """

    source: str
    nodes: Nodes
    definitions: Mapping[str, Nodes]


def fields_used(template: Template) -> frozenset[str]:
    """Return the names of all fields that a template asks for, of whatever value."""
    lists = (template.nodes, *template.definitions.values())
    return frozenset(name for nodes in lists for name in _fields(nodes))


def until_field(template: Template, name: str) -> Template:
    """Return the template up to and including the action that writes a field, in reading order."""
    nodes, _ = _until(template.nodes, name)
    return replace(template, nodes=nodes)


def _fields(nodes: Nodes) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, Action | Branch | Call) and node.pipeline is not None:
            yield from _of_operand(node.pipeline)
        if isinstance(node, Branch):
            yield from _fields(node.body)
            yield from _fields(node.otherwise)


def _of_operand(operand: Operand) -> Iterator[str]:
    if isinstance(operand, Field | Chain):
        yield from operand.names
    if isinstance(operand, Chain):
        yield from _of_operand(operand.operand)
    elif isinstance(operand, Pipeline):
        for command in operand.commands:
            for part in command:
                yield from _of_operand(part)


def _until(nodes: Nodes, name: str) -> tuple[Nodes, bool]:
    kept: list[Node] = []
    for node in nodes:
        if isinstance(node, Action) and name in _of_operand(node.pipeline):
            return (*kept, node), True
        if isinstance(node, Branch):
            body, found = _until(node.body, name)
            if found:
                return (*kept, replace(node, body=body, otherwise=())), True
            otherwise, found = _until(node.otherwise, name)
            if found:
                return (*kept, replace(node, otherwise=otherwise)), True
        kept.append(node)
    return tuple(kept), False
