"""Messages of msgspec about wrong types, in the words of the user who sent the value."""

from __future__ import annotations

import re

import msgspec

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
