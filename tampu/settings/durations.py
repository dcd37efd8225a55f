"""Parses and formats durations in Go's notation, as Ollama's clients use it: "1m30.5s", "340ms"."""

from __future__ import annotations

import re

_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_TERM = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ms|us|µs|ns|h|m|s)")
_MAX_S = 2.0**63 / 1e9


def parse_duration(text: str) -> float:
    """Return the seconds of a duration such as "1h30m", "-1m" or "500ms".

    Raises:
        ValueError: if it is anything else, such as a number without a unit.
    """
    sign = -1.0 if text.startswith("-") else 1.0
    terms = text[1:] if text[:1] in ("-", "+") else text
    if terms == "0":
        return 0.0
    found = list(_TERM.finditer(terms))
    if not found or "".join(match.group() for match in found) != terms:
        raise ValueError(f'{text!r} is not a duration: write "5m", "1h30m" or "500ms"')
    seconds = sum(float(match[1]) * _SECONDS[match[2]] for match in found)
    if seconds >= _MAX_S:
        raise ValueError(f"{text!r} is longer than 292 years")
    return sign * seconds


def format_duration(nanoseconds: int) -> str:
    """Return a duration in Go's format."""
    if nanoseconds < 0:
        return "-" + format_duration(-nanoseconds)
    for unit, size in (("ns", 1), ("µs", 10**3), ("ms", 10**6)):
        if nanoseconds < size * 1000:
            return "0s" if nanoseconds == 0 else _decimal(nanoseconds, size) + unit
    minutes, rest = divmod(nanoseconds, 60 * 10**9)
    seconds = _decimal(rest, 10**9) + "s"
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{seconds}"
    return f"{minutes}m{seconds}" if minutes else seconds


def _decimal(count: int, size: int) -> str:
    """Return `count / size` exactly, without trailing zeros."""
    whole, rest = divmod(count, size)
    if rest == 0:
        return str(whole)
    digits = len(str(size)) - 1
    return f"{whole}.{rest:0{digits}d}".rstrip("0")
