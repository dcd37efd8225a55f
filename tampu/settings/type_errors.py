"""Messages of msgspec about wrong types, in the words of the user who sent the value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from tampu.errors import RequestError

_TYPES = {
    "str": "a string", "int": "an integer", "float": "a number", "bool": "true or false",
    "array": "a list", "object": "an object",
}  # fmt: skip
_GOT = _TYPES | {"bool": "a boolean"}
_MESSAGE = re.compile(
    r"(?:Expected `(?P<expected>[^`]+)`, got `(?P<got>\w+)`"
    r"|Object missing required field `(?P<missing>\w+)`"
    r"|(?P<other>.*?))"
    r"(?: - at (?:`(?P<part>key|value)` in )?`\$\.?(?P<field>.*)`)?",
    re.DOTALL,
)


T = TypeVar("T")

_PLAIN_NAME = re.compile(r"[\w:-]{1,100}")
STEP = re.compile(r"\.(?P<name>[\w:-]+)|\[(?P<index>\d+)\]")


def with_keys(error: msgspec.ValidationError, value: Any, kind: type) -> msgspec.ValidationError:
    """Return the error with the keys of objects in its path, where msgspec has `[...]`.

    Args:
        error: of converting the value to `kind`.
        value: of dicts and lists; it is changed.
        kind: a type.
    """
    text = str(error)
    while (name := _wrong_key(text, str(error), value, kind)) is not None:
        text = text.replace("[...]", f".{name}", 1)
    return msgspec.ValidationError(text)


def _wrong_key(text: str, original: str, value: Any, kind: type) -> str | None:
    """Return the key that the first `[...]` stands for, and leave it alone in its object."""
    before, dots, after = text.rpartition("`$")[2].partition("[...]")
    if not dots or after.startswith("` in"):
        return None
    found: Any = value
    for step in STEP.finditer(before):
        found = found[step["name"] or int(step["index"])]
    if not isinstance(found, dict) or not found:
        return None
    items = [*found.items()]

    def is_in(part: list[tuple[str, Any]]) -> bool:
        found.clear()
        found.update(part)
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError as other:
            return str(other) == original
        return False

    while len(items) > 1:
        half = items[: len(items) // 2]
        items = half if is_in(half) else items[len(half) :]
    name = items[0][0]
    return name if is_in(items) and _PLAIN_NAME.fullmatch(name) else None


def convert(values: Mapping[str, object], kind: type[T], whole: str) -> T:
    """Return the values of a program as a struct.

    Raises:
        RequestError: naming a field with a wrong value; `whole` names them all.
    """
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise RequestError(type_error(error, whole)) from None
    except (AttributeError, UnicodeEncodeError) as error:  # of what is neither JSON nor Unicode
        raise RequestError(f"{whole}: {error}") from None


def type_error(
    error: msgspec.ValidationError, whole: str = "the request", *, inside: str = ""
) -> str:
    """Return which field is wrong, as in `temperature must be a number, not a string`.

    `whole` names the value without a field; `inside` is the field of the request that it is.
    """
    found = _MESSAGE.fullmatch(str(error))
    if found is None:
        return str(error)
    field = found["field"] or ""
    dot = "." if inside and field and not field.startswith("[") else ""
    field = f"{inside}{dot}{field}"
    if found["missing"]:
        return f"{field}{'.' * bool(field)}{found['missing']} is missing"
    if field.endswith("[...]"):
        field = f"each value of {field.removesuffix('[...]')}"
    elif found["part"]:
        field = f"each {found['part']} of {field}"
    if found["other"]:
        return f"{field or whole}: {found['other']}"
    names = found["expected"].split(" | ")
    wanted = [_TYPES.get(name, name) for name in names if name != "null"]
    if "float" in names and "int" in names:
        wanted.remove(_TYPES["int"])
    got = _GOT.get(found["got"], found["got"])
    return f"{field or whole} must be {' or '.join(wanted)}, not {got}"
