"""The parts that a template consists of, after parsing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant: text, number, true, false or nil."""

    value: str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Dot:
    """The present value."""


@dataclass(frozen=True, slots=True)
class Field:
    """Fields of the present value, `.A.B`."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable, `$x`; `$` alone is the value that the template was given."""

    name: str


@dataclass(frozen=True, slots=True)
class Chain:
    """Fields of what an operand gives, `(...).A.B` or `$x.A`."""

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
        is_assignment: whether the variables are there already.
        line: where it stands.
    """

    commands: tuple[tuple[Operand, ...], ...]
    names: tuple[str, ...] = ()
    is_assignment: bool = False
    line: int = 0


Operand: TypeAlias = Literal | Dot | Field | Variable | Chain | Function | Pipeline


@dataclass(frozen=True, slots=True)
class Text:
    """Text that is written as it is."""

    text: str


@dataclass(frozen=True, slots=True)
class Action:
    """A pipeline whose result is written, unless it goes into a variable."""

    pipeline: Pipeline


@dataclass(frozen=True, slots=True)
class If:
    """One list of nodes or another."""

    pipeline: Pipeline
    body: Nodes
    otherwise: Nodes


@dataclass(frozen=True, slots=True)
class With:
    """As `If`, with the pipeline's result as the present value of the first list."""

    pipeline: Pipeline
    body: Nodes
    otherwise: Nodes


@dataclass(frozen=True, slots=True)
class Range:
    """A list of nodes for each item, another if there is none."""

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
class Break:
    """The end of a range."""


@dataclass(frozen=True, slots=True)
class Continue:
    """The next item of a range."""


Branch: TypeAlias = If | With | Range
Node: TypeAlias = Text | Action | Branch | Call | Break | Continue
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
