"""Checks the arguments of the Python API by their annotations, so that only `TampuError`s leave it.

An annotation becomes a `Kind` at the first call. Most arguments are then checked by their class
alone, also the items of a sequence: a prompt of many tokens has one class.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from functools import cache, wraps
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
)
from typing import get_type_hints as type_hints

import msgspec
import numpy as np

from tampu.errors import RequestError

P = ParamSpec("P")
T = TypeVar("T")
Check: TypeAlias = Callable[[Any, str], None]
"""Raises RequestError if a value, named by the text, is wrong."""


def _check_path(value: str | Path, where: str) -> None:
    """Refuse a text that the system takes for no path."""
    try:
        is_path = b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:
        is_path = False
    if not is_path:
        raise RequestError(f"{where} is not a path: {str(value)[:100]!r}")


FilePath: TypeAlias = Annotated[str | Path, _check_path]
"""The path of a file or a folder."""

_FLOAT_MAX = sys.float_info.max
_TEXTS = (str, bytes, bytearray, memoryview)
_NAMES: Mapping[type, str] = {
    str: "a string", bytes: "bytes", int: "an integer", float: "a number", bool: "a boolean",
    list: "a list", tuple: "a list", dict: "a dict", Path: "a path", type(None): "None",
}  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """The values that an annotation allows.

    Attributes:
        words: what they are, for messages.
        types: classes whose instances are allowed, whatever is in them.
        parts: classes whose instances are allowed if a check passes.
    """

    words: tuple[str, ...]
    types: tuple[type, ...] = ()
    parts: tuple[tuple[type, Check], ...] = ()

    def check(self, value: Any, where: str) -> None:
        """Check a value.

        Raises:
            RequestError: naming the place, what it must be and what it is.
        """
        given = type(value)
        if given in self.types:
            return
        if given is not bool:  # a subclass of int, but no number
            for base, check in self.parts:
                if isinstance(value, base) and not (base is Sequence and isinstance(value, _TEXTS)):
                    check(value, where)
                    return
            if isinstance(value, self.types):
                return
        raise RequestError(f"{where} must be {' or '.join(self.words)}, not {_name(given)}")


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """Return a function that checks its arguments by their annotations before it runs.

    Keywords without a parameter of their own (`**options`) are left to the function.
    """
    names = [*inspect.signature(function).parameters]

    @cache
    def kinds() -> dict[str, Kind]:
        return {
            name: kind_of(hint) for name, hint in type_hints(function, include_extras=True).items()
        }

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        known = kinds()
        for name, value in (*zip(names, args, strict=False), *kwargs.items()):
            if name in known:
                known[name].check(value, name)
        return function(*args, **kwargs)

    return call


@cache
def kind_of(hint: Any) -> Kind:
    """Return the values that an annotation allows."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return Kind(kind_of(inside[0]).words, parts=((object, _all_of(inside)),))
    if origin in (Union, types.UnionType):
        return _any_of([kind_of(each) for each in inside])
    if origin is Literal:
        return Kind((f"one of {', '.join(map(str, inside))}",), parts=((str, _one_of(inside)),))
    if origin is Callable:
        return Kind(("a function",), parts=((object, _check_callable),))
    if origin is np.ndarray:
        return Kind(("an array",), (np.ndarray,))
    if origin is tuple and inside[1:] != (...,):
        return Kind(("a tuple",), parts=((tuple, _check_items(tuple(map(kind_of, inside)))),))
    if origin in (Sequence, list, tuple):
        check = _check_sequence(kind_of(inside[0]))
        return Kind(("a list",), parts=((Sequence, check), (np.ndarray, check)))
    if origin in (Mapping, dict):
        return Kind(("a dict",), parts=((Mapping, _check_mapping(*map(kind_of, inside))),))
    return _class_kind(hint)


def _class_kind(hint: Any) -> Kind:
    if hint is float:
        numbers = (float, np.floating, np.integer)
        return Kind(("a number",), numbers, ((int, _check_size),))
    if hint is int:
        return Kind(("an integer",), (int, np.int32, np.int64, np.integer))
    if hint is bool:
        return Kind(("a boolean",), (bool, np.bool_))
    if hint is type(None):
        return Kind((), (hint,))
    if hint in (Any, object) or not isinstance(hint, type) or Protocol in hint.__bases__:
        return Kind((), (bool,), ((object, _allow),))
    if dataclasses.is_dataclass(hint) or issubclass(hint, msgspec.Struct):
        return Kind((hint.__name__,), parts=((hint, _check_fields(hint)),))
    return Kind((_NAMES.get(hint, hint.__name__),), (hint,))


def _any_of(kinds: Sequence[Kind]) -> Kind:
    return Kind(
        tuple(dict.fromkeys(word for kind in kinds for word in kind.words)),
        tuple(each for kind in kinds for each in kind.types),
        tuple(each for kind in kinds for each in kind.parts),
    )


def _check_sequence(item: Kind) -> Check:
    allowed = frozenset(item.types)

    def check(value: Any, where: str) -> None:
        if isinstance(value, np.ndarray) and not value.ndim:
            raise RequestError(f"{where} must be a list, not an array without a dimension")
        if not set(map(type, value)) <= allowed:
            for index, each in enumerate(value):
                item.check(each, f"{where}[{index}]")

    return check


def _check_items(kinds: tuple[Kind, ...]) -> Check:
    def check(value: Any, where: str) -> None:
        if len(value) != len(kinds):
            raise RequestError(f"{where} must have {len(kinds)} items, not {len(value)}")
        for index, (kind, each) in enumerate(zip(kinds, value, strict=True)):
            kind.check(each, f"{where}[{index}]")

    return check


def _check_mapping(key: Kind, item: Kind) -> Check:
    def check(value: Any, where: str) -> None:
        for name, each in value.items():
            key.check(name, f"a key of {where}")
            item.check(each, f"{where}[{str(name)[:100]!r}]")

    return check


def _check_fields(struct: type) -> Check:
    @cache
    def kinds() -> dict[str, Kind]:
        return {name: kind_of(hint) for name, hint in type_hints(struct).items()}

    def check(value: Any, where: str) -> None:
        for name, kind in kinds().items():
            kind.check(getattr(value, name), f"{where}.{name}")

    return check


def _all_of(parts: tuple[Any, ...]) -> Check:
    hint, *more = parts

    def check(value: Any, where: str) -> None:
        kind_of(hint).check(value, where)
        for each in more:
            each(value, where)

    return check


def _one_of(words: tuple[Any, ...]) -> Check:
    def check(value: Any, where: str) -> None:
        if value not in words:
            raise RequestError(f"{where} must be one of {', '.join(words)}, not {value[:40]!r}")

    return check


def _check_size(value: Any, where: str) -> None:
    if not -_FLOAT_MAX <= value <= _FLOAT_MAX:
        raise RequestError(f"{where} is too large for a number")


def _check_callable(value: Any, where: str) -> None:
    if not callable(value):
        raise RequestError(f"{where} must be a function, not {_name(type(value))}")


def _allow(_value: Any, _where: str) -> None:
    pass


def _name(kind: type) -> str:
    return _NAMES.get(kind, kind.__name__)
