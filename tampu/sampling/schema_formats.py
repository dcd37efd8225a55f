"""Formats of strings and numbers in JSON schemas: the pattern or the limits that each one means.

Dates and times are those of RFC 3339 as its readers accept them everywhere: `T` and `Z` in upper
case, at most nine digits of a second's fraction.
"""

from __future__ import annotations

from typing import Any

# Enforced by llguidance, by these names.
_BUILTIN = ("email", "hostname", "ipv4", "ipv6", "uri")
# Other generators' names for the same.
_ALIASES = {"guid": "uuid", "ipv4-address": "ipv4", "ipv6-address": "ipv6", "url": "uri"}
# Formats that any text has, or that say how a client shows or stores it.
_ANY_TEXT = frozenset({
    "password", "binary", "path", "file-path", "directory-path", "new-path", "string", "text",
    "textarea", "markdown", "html", "multiline", "hidden", "unknown",
})  # fmt: skip
# Formats of numbers that are wider than what can be checked, or say how a client stores them.
_ANY_NUMBER = frozenset({
    "int64", "uint64", "int128", "uint128", "long", "float", "float32", "double", "float64",
    "decimal", "decimal128", "number",
})  # fmt: skip

_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?"
_ZONE = r"(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    f"|{_LEAP_YEAR}-02-29)"
)
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"(?:{_OCTET}\.){{3}}{_OCTET}"
_GROUP = r"[0-9a-fA-F]{1,4}"
_IPV6 = rf"(?:(?:{_GROUP}:){{7}}{_GROUP}|(?:{_GROUP}:){{1,6}}:{_GROUP}|::(?:{_GROUP})?)"
_CIDR4 = rf"{_IPV4}/(?:3[0-2]|[12]?[0-9])"
_CIDR6 = rf"{_IPV6}/(?:12[0-8]|1[01][0-9]|[1-9]?[0-9])"
_BASE64 = r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
_HEX4 = "[0-9a-fA-F]{4}"


def _count(unit: str) -> str:
    return f"[0-9]{{1,9}}{unit}"


def _duration() -> str:
    """Return the pattern of ISO 8601's durations, as RFC 3339 limits them."""
    time = "|".join((
        f"{_count('H')}(?:{_count('M')}(?:{_count('S')})?)?",
        f"{_count('M')}(?:{_count('S')})?", _count("S"),
    ))  # fmt: skip
    date = "|".join((
        f"{_count('Y')}(?:{_count('M')}(?:{_count('D')})?)?",
        f"{_count('M')}(?:{_count('D')})?", _count("D"),
    ))  # fmt: skip
    return f"P(?:(?:{date})(?:T(?:{time}))?|T(?:{time})|{_count('W')})"


_PATTERNS = {
    "date-time": rf"{_DATE}T{_CLOCK}{_ZONE}",
    "date": _DATE,
    "time": f"{_CLOCK}{_ZONE}",
    "duration": _duration(),
    "partial-time": _CLOCK,
    "byte": _BASE64,
    "base64": _BASE64,
    "base64url": r"(?:[A-Za-z0-9_-]{4})*(?:[A-Za-z0-9_-]{2}(?:==)?|[A-Za-z0-9_-]{3}=?)?",
    "ipvanyaddress": f"(?:{_IPV4}|{_IPV6})",
    "ip": f"(?:{_IPV4}|{_IPV6})",
    **{f"ipv4{kind}": _CIDR4 for kind in ("network", "interface")},
    **{f"ipv6{kind}": _CIDR6 for kind in ("network", "interface")},
    **{f"ipvany{kind}": f"(?:{_CIDR4}|{_CIDR6})" for kind in ("network", "interface")},
    "cidrv4": _CIDR4,
    "cidrv6": _CIDR6,
    "json-pointer": r"(?:/(?:[^/~]|~[01])*)*",
    "uuid": rf"{_HEX4}{_HEX4}(?:-{_HEX4}){{4}}{_HEX4}{_HEX4}",
    "char": r"[\s\S]",
    **{
        f"uuid{version}": rf"{_HEX4}{_HEX4}-{_HEX4}-{version}[0-9a-fA-F]{{3}}"
        rf"-[89abAB][0-9a-fA-F]{{3}}-{_HEX4}{_HEX4}{_HEX4}"
        for version in range(1, 9)
    },
}
_LIMITS = {
    name: {"minimum": low, "maximum": high}
    for name, low, high in (
        *((f"int{bits}", -(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32)),
        *((f"uint{bits}", 0, 2**bits - 1) for bits in (8, 16, 32)),
    )
}


def is_of_numbers(name: str) -> bool:
    """Return whether a format is one of numbers."""
    return name in _ANY_NUMBER or name in _LIMITS


def conditions_of(name: str) -> dict[str, Any] | None:
    """Return the keywords that a format stands for; None: it is not enforced."""
    name = _ALIASES.get(name, name)
    if name in _BUILTIN:
        return {"format": name}
    if name in _PATTERNS:
        return {"pattern": f"^(?:{_PATTERNS[name]})$"}
    if name in _LIMITS:
        return dict(_LIMITS[name])
    return {} if name in _ANY_TEXT or name in _ANY_NUMBER else None
