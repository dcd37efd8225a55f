"""The Jinja environment in which a model's own template runs: a stranger's code, so on a budget.

Jinja's immutable sandbox keeps a template from Python's internals and from changing what it is
given. It does not keep it from running for ever or filling the memory; this environment does, with
what templates have no need of left out and three budgets that each rendering gets anew: seconds,
characters of output, and characters in strings made on the way.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from threading import local
from types import BuiltinMethodType
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

MAX_SECONDS = 2.0
MAX_OUTPUT = 8 * 1024 * 1024
MAX_WORK = 64 * 1024 * 1024
MAX_WIDTH = 1_000

FILTERS = (
    "abs capitalize count d default dictsort e escape first float groupby int items last length "
    "list lower map max min reject rejectattr reverse round safe select selectattr sort string "
    "title trim truncate unique upper wordcount"
)

_ITEM_SIZE = 8  # what an item of a list takes, counted as characters
_WIDE_FORMAT = re.compile(r"\d{4}|\*|\{[^{}]*\{")


class Budget:
    """What is left to one rendering."""

    def __init__(self) -> None:
        self.deadline = time.monotonic() + MAX_SECONDS
        self.output = MAX_OUTPUT
        self.work = MAX_WORK

    def check_time(self) -> None:
        """Raise SecurityError when the time is up."""
        if time.monotonic() > self.deadline:
            raise SecurityError(f"it runs for more than {MAX_SECONDS:g} s")

    def spend_work(self, characters: int) -> None:
        """Count the characters of a string or list that is about to be made."""
        self.work -= characters
        if self.work < 0:
            raise SecurityError(f"it makes strings of more than {MAX_WORK} characters")

    def spend_output(self, characters: int) -> None:
        """Count the characters written."""
        self.output -= characters
        if self.output < 0:
            raise SecurityError(f"it writes more than {MAX_OUTPUT} characters")


class GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}`: marks for training; here its content as it is."""

    tags = {"generation"}  # noqa: RUF012  # as its base class has it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the nodes between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _CountedConcatenation(NodeTransformer):
    """Replaces `a ~ b` by a call of `TemplateEnvironment.concatenate`."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        function = nodes.EnvironmentAttribute("concatenate")
        return nodes.Call(function, node.nodes, [], None, None, lineno=node.lineno)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox with the extras that Hugging Face's templates rely on, and the budgets.

    `start()` gives the calling thread a new budget; without it nothing renders.
    """

    intercepted_binops = frozenset({"+", "*", "%", "**"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationTag]
        )
        self._thread = local()
        self.filters = {name: JINJA_FILTERS[name] for name in FILTERS.split()} | {
            "join": self._join,
            "replace": self._replace,
            "indent": self._indent,
            "format": self._format,
            "tojson": tojson,
        }
        self.globals = {
            "range": safe_range,
            "dict": dict,
            "namespace": Namespace,
            "raise_exception": raise_exception,
            "strftime_now": strftime_now,
        }

    def start(self) -> Budget:
        """Begin a rendering in this thread."""
        budget = Budget()
        self._thread.budget = budget
        return budget

    @property
    def budget(self) -> Budget:
        """The budget of the rendering that this thread is in."""
        budget: Budget = self._thread.budget
        return budget

    def concatenate(self, *parts: object) -> str:
        """`a ~ b`: the compiler's own would not count."""
        texts = [str(part) for part in parts]
        self.budget.spend_work(sum(map(len, texts)))
        return "".join(texts)

    def tick(self) -> str:
        """Check the time; called in each turn of a loop and in each macro."""
        self.budget.check_time()
        return ""

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        tick = nodes.Call(nodes.EnvironmentAttribute("tick"), [], [], None, None)
        for loop in tree.find_all(nodes.For):
            loop.body.insert(0, nodes.ExprStmt(tick, lineno=loop.lineno))
        for macro in tree.find_all(nodes.Macro):
            macro.body.insert(0, nodes.ExprStmt(tick, lineno=macro.lineno))
        counted: nodes.Template = _CountedConcatenation().visit(tree)
        return counted

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call from a template, after a look at what could take for ever."""
        self.budget.check_time()
        if isinstance(function, BuiltinMethodType) and isinstance(function.__self__, str):
            self._check_string_method(function.__self__, function.__name__, args)
        return super().call(context, function, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute an operator whose result may be large, after counting it."""
        if operator == "**" and not (_is_small(left) and _is_small(right)):
            raise SecurityError("it raises a large number to a power")
        if operator == "%" and isinstance(left, str):
            self._check_format(left)
        if operator == "*":
            self.budget.spend_work(_length(left) * _factor(right) + _length(right) * _factor(left))
        if operator == "+":
            self.budget.spend_work(_length(left) + _length(right))
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """As the sandbox does, for a format without large widths."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            self._check_format(value.__self__)
        return wrapped

    def _check_format(self, text: str) -> None:
        if _WIDE_FORMAT.search(text):
            raise SecurityError("it formats with a width that is too large or computed")

    def _check_string_method(self, text: str, method: str, args: tuple[Any, ...]) -> None:
        if method in {"center", "ljust", "rjust", "zfill", "expandtabs"}:
            self._check_width(*args[:1])
        elif method == "replace" and len(args) > 1:
            self._spend_replacing(text, str(args[0]), str(args[1]))
        elif method == "join" and args and isinstance(args[0], (list, tuple)):
            self._spend_joining(text, args[0])
        else:
            self.budget.spend_work(len(text))

    def _check_width(self, width: object = 8) -> None:
        if not isinstance(width, int) or width > MAX_WIDTH:
            raise SecurityError(f"it pads to a width of more than {MAX_WIDTH}")

    def _spend_replacing(self, text: str, old: str, new: str) -> None:
        self.budget.spend_work(len(text) + text.count(old) * len(new))

    def _spend_joining(self, separator: str, items: Iterable[Any]) -> None:
        self.budget.spend_work(sum(len(str(item)) + len(separator) for item in items))

    def _join(self, items: Iterable[Any], separator: str = "", attribute: Any = None) -> str:
        texts = [
            str(item if attribute is None else self.getitem(item, attribute)) for item in items
        ]
        self._spend_joining(separator, texts)
        return separator.join(texts)

    def _replace(self, text: Any, old: str, new: str, count: int = -1) -> str:
        self._spend_replacing(str(text), old, new)
        return str(text).replace(old, new, count)

    def _indent(self, text: str, width: int | str = 4, first: bool = False) -> str:  # noqa: FBT001, FBT002
        if isinstance(width, int):
            self._check_width(width)
            width = " " * width
        self.budget.spend_work(len(text) + (text.count("\n") + 1) * len(width))
        lines = text.split("\n")
        body = [width + line if line else line for line in lines[1:]]
        return "\n".join([width + lines[0] if first else lines[0], *body])

    def _format(self, text: str, *args: Any, **kwargs: Any) -> str:
        self._check_format(text)
        formatted: str = text % (kwargs or args)
        return formatted


def raise_exception(message: str) -> NoReturn:
    """For templates that refuse a conversation."""
    raise TemplateError(message)


def strftime_now(pattern: str) -> str:
    """Today's date for templates that state it, in the local time zone."""
    return datetime.now().astimezone().strftime(pattern)


def tojson(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    """JSON as models were trained on it: nothing escaped for HTML, keys in their order."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _length(value: object) -> int:
    if isinstance(value, (list, tuple)):
        return len(value) * _ITEM_SIZE
    return len(value) if isinstance(value, str) else 0


def _factor(value: object) -> int:
    return max(value, 0) if isinstance(value, int) else 0


def _is_small(value: object) -> bool:
    return isinstance(value, (int, float)) and abs(value) <= 1_000
