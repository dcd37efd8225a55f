"""The Jinja environment in which a model's own template runs: untrusted code, so on a budget.

Jinja's immutable sandbox keeps a template from Python's internals and from changing its arguments,
but not from running without end or filling the memory. This environment does, with a budget for
each rendering (`tampu.chat.budget`). What gets past it meets the limits of the process that renders
(`tampu.chat.sandboxed_template`).

It has what the environment of transformers' `apply_chat_template` has, but for `lipsum`, and
`{% do %}` besides.

It also tracks the text that came from outside the template (`tampu.chat.taint`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import wraps
from threading import local
from types import BuiltinMethodType, MethodType
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, do, loopcontrols
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import BlockReference, Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.utils import Cycler, Joiner, Namespace
from jinja2.visitor import NodeTransformer

from tampu.chat.budget import MAX_WIDTH, Budget
from tampu.chat.taint import (
    TaintedStr,
    brace_formatted,
    is_marked,
    joined,
    marks_of,
    percent_formatted,
    shown,
)

_CHOOSING = {"d", "default", "first", "last", "max", "min", "random"}  # return an argument
# The methods of bytes that neither make long values nor give back text without marks.
_OF_BYTES = {"count", "decode", "endswith", "find", "hex", "index", "isascii", "startswith"}
_WRITING = (Macro, LoopContext, BlockReference)  # call back into the template
_METHODS = (BuiltinMethodType, MethodType)  # of texts, also of those with marks

_ITEM_SIZE = 8  # of an item of a list, counted as characters
_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&#34;", "'": "&#39;"}
_ESCAPING = {"e", "escape", "forceescape", "safe"}
_WIDE_FORMAT = re.compile(r"\d{4}|\*|\{[^{}]*\{")


class GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}`: for training; here its content as it is."""

    tags = {"generation"}  # noqa: RUF012  # as its base class has it

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the content in a scope of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _CountedConcatenation(NodeTransformer):
    """Replaces `a ~ b` by a call of `TemplateEnvironment.concatenate`."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        function = nodes.EnvironmentAttribute("concatenate")
        return nodes.Call(function, node.nodes, [], None, None, lineno=node.lineno)


class _EscapedOutput(NodeTransformer):
    """Replaces `{% autoescape %}` by filters that escape what is written inside."""

    def __init__(self) -> None:
        self._is_on = False

    def visit_ScopedEvalContextModifier(self, node: Any) -> nodes.Node:  # noqa: N802
        was_on = self._is_on
        for option in node.options:
            if not isinstance(option.value, nodes.Const):  # nothing is computed while compiling
                raise TemplateSyntaxError("autoescape must be true or false", node.lineno)
            self._is_on = bool(option.value.value)
        self.generic_visit(node)
        self._is_on = was_on
        return nodes.Scope(node.body, lineno=node.lineno)

    def visit_Output(self, node: nodes.Output) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if self._is_on:
            node.nodes = [self._escaped(each) for each in node.nodes]
        return node

    def _escaped(self, node: nodes.Expr) -> nodes.Expr:
        is_filter = isinstance(node, nodes.Filter) and node.name in _ESCAPING
        if is_filter or isinstance(node, nodes.TemplateData):
            return node
        return nodes.Filter(node, "escape", [], [], None, None, lineno=node.lineno)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox with the extras that Hugging Face's templates rely on, and the budgets.

    `start()` gives the calling thread a new budget; without one nothing renders.
    """

    intercepted_binops = frozenset({"+", "*", "%", "**"})
    concat = staticmethod(joined)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # nothing of a template runs while it is compiled
            finalize=_finalized,
            extensions=[loopcontrols, do, GenerationTag],
        )
        self._thread = local()
        filters = JINJA_FILTERS | {
            "center": self._center,
            "e": _escape,
            "escape": _escape,
            "forceescape": _escape,
            "format": self._format,
            "indent": self._indent,
            "join": self._join,
            "replace": self._replace,
            "safe": shown,
            "string": shown,
            "tojson": tojson,
        }
        self.filters = {name: _following(name, filters[name]) for name in filters}
        self.globals = {
            "range": safe_range,
            "dict": dict,
            "cycler": Cycler,
            "joiner": Joiner,
            "namespace": Namespace,
            "raise_exception": raise_exception,
            "strftime_now": strftime_now,
        }

    def start(self) -> Budget:
        """Begin a rendering in this thread."""
        budget = Budget(SecurityError)
        self._thread.budget = budget
        return budget

    @property
    def budget(self) -> Budget:
        """The budget of the rendering that this thread is in."""
        budget: Budget = self._thread.budget
        return budget

    def concatenate(self, *parts: object) -> str:
        """`a ~ b`, counted."""
        texts = [shown(part) for part in parts]
        self.budget.spend_work(sum(map(len, texts)))
        return joined(texts)

    def tick(self) -> str:
        """Check the time; called in each turn of a loop and in each macro."""
        self.budget.check_time()
        return ""

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        tree = _EscapedOutput().visit(tree)
        tick = nodes.Call(nodes.EnvironmentAttribute("tick"), [], [], None, None)
        for loop in tree.find_all(nodes.For):
            loop.body.insert(0, nodes.ExprStmt(tick, lineno=loop.lineno))
        for macro in tree.find_all(nodes.Macro):
            macro.body.insert(0, nodes.ExprStmt(tick, lineno=macro.lineno))
        counted: nodes.Template = _CountedConcatenation().visit(tree)
        return counted

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Return whether a template may use an attribute."""
        is_known = not isinstance(obj, bytes) or attr in _OF_BYTES
        return is_known and super().is_safe_attribute(obj, attr, value)

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call from a template, after checking what could take too long."""
        self.budget.check_time()
        owner = function.__self__ if isinstance(function, _METHODS) else None
        if isinstance(owner, str):
            if function.__name__ == "join":
                args = tuple(list(arg) for arg in args)
            self._check_string_method(owner, function.__name__, args)
            if is_marked((args, kwargs)):
                function = getattr(TaintedStr.of(owner, marks_of(owner)), function.__name__)
        if isinstance(owner, bytes):
            args = (owner, *args)
            return _followed(super().call(context, function, *args[1:], **kwargs), args, kwargs)
        result = super().call(context, function, *args, **kwargs)
        return result if isinstance(function, _WRITING) else _followed(result, args, kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute an operator whose result may be large, after counting it."""
        if operator == "**" and not (_is_small(left) and _is_small(right)):
            raise SecurityError("it raises a large number to a power")
        if operator == "%" and isinstance(left, str):
            self._check_format(left)
            if "c" in left or is_marked((left, right)):  # `%c` makes text of a number
                return percent_formatted(left, right)
        if operator == "*":
            self.budget.spend_work(_length(left) * _factor(right) + _length(right) * _factor(left))
        if operator == "+":
            self.budget.spend_work(_length(left) + _length(right))
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return the replacement of `str.format`: no attributes, no large widths."""
        if not isinstance(value, _METHODS) or value.__name__ not in {"format", "format_map"}:
            return None
        template, name = value.__self__, value.__name__
        if not isinstance(template, str):
            return None

        def formatted(*args: Any, **kwargs: Any) -> str:
            self._check_format(template)
            if name == "format_map":
                return brace_formatted(template, (), args[0])
            return brace_formatted(template, args, kwargs)

        return formatted

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
        if attribute is not None:
            items = map(make_attrgetter(self, attribute), items)
        texts = [shown(item) for item in items]
        self._spend_joining(separator, texts)
        return joined(texts, separator)

    def _replace(self, text: Any, old: str, new: str, count: int = -1) -> str:
        text = shown(text)
        self._spend_replacing(text, old, new)
        return TaintedStr.of(text, marks_of(text)).replace(old, new, count)

    def _indent(
        self,
        text: str,
        width: int | str = 4,
        first: bool = False,  # noqa: FBT001, FBT002
        blank: bool = False,  # noqa: FBT001, FBT002
    ) -> str:
        if isinstance(width, int):
            self._check_width(width)
            width = " " * width
        self.budget.spend_work(len(text) + (text.count("\n") + 1) * len(width))
        lines = (text + "\n").splitlines()
        newline = TaintedStr.of("\n") if is_marked(text) else "\n"
        body = [newline + (width if line or blank else "") + line for line in lines[1:]]
        return joined([width if first else "", lines[0], *body])

    def _center(self, text: Any, width: int = 80) -> str:
        self._check_width(width)
        return shown(text).center(width)

    def _format(self, text: str, *args: Any, **kwargs: Any) -> str:
        self._check_format(text)
        return percent_formatted(text, kwargs or args)


@pass_context  # also keeps the compiler from computing constants
def _finalized(_: Context, value: object) -> str:
    """Return the text that is written for the value of an expression."""
    return shown(value)


def _following(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter whose result is marked when its arguments are."""
    if name in _CHOOSING:
        return function

    @wraps(function)
    def filtered(*args: Any, **kwargs: Any) -> Any:
        return _followed(function(*args, **kwargs), args, kwargs)

    return filtered


def _followed(result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    is_plain = isinstance(result, str) and not isinstance(result, TaintedStr)
    return TaintedStr.of(result) if is_plain and is_marked((args, kwargs)) else result


def _escape(value: object) -> str:
    return "".join(_ESCAPES.get(character, character) for character in str(shown(value)))


def raise_exception(message: str) -> NoReturn:
    """Refuse the conversation."""
    raise TemplateError(message)


def strftime_now(pattern: str) -> str:
    """Return today's date in the local time zone."""
    return datetime.now().astimezone().replace(tzinfo=None).strftime(pattern)


def tojson(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    """Return JSON as models were trained on it: nothing escaped for HTML, keys in their order."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _length(value: object) -> int:
    if isinstance(value, (list, tuple)):
        return len(value) * _ITEM_SIZE
    return len(value) if isinstance(value, str | bytes) else 0


def _factor(value: object) -> int:
    return max(value, 0) if isinstance(value, int) else 0


def _is_small(value: object) -> bool:
    return isinstance(value, (int, float)) and abs(value) <= 1_000
