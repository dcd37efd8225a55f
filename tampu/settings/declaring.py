"""How a setting is declared: its variable, how its text is read, and its default."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")
D = TypeVar("D")

SECRET = frozenset({"API_KEY", "HF_TOKEN", "LOGINS", "USE_API_KEY"})
VARIABLE = "variable"


@dataclass(frozen=True, slots=True)
class Source:
    """The value of a setting, and where it came from: a variable, a file, or the default.

    Attributes:
        text: the value as the user or the documentation writes it; None: its own text.
    """

    value: object
    origin: str
    text: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Variable:
    """The variable of a setting, without its prefix.

    Attributes:
        parse: reads its text; raises ValueError, saying what it expects.
        is_shared: whether Ollama has it too.
        text: the default as the documentation has it; None: its own text.
    """

    name: str
    parse: Callable[[str], Any]
    default: Any
    is_shared: bool
    text: str | None


def own(
    name: str,
    parse: Callable[[str], T],
    default: D,
    text: str | None = None,
    *,
    is_shared: bool = False,
) -> T | D:
    """Declare a setting that only tampu has, unless it is shared."""
    variable = Variable(name, parse, default, is_shared, text)
    return field(default=default, repr=name not in SECRET, metadata={VARIABLE: variable})


def shared(name: str, parse: Callable[[str], T], default: D, text: str | None = None) -> T | D:
    """Declare a setting that Ollama has too."""
    return own(name, parse, default, text, is_shared=True)
