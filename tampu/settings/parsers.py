"""Parsers of setting values; each raises ValueError, saying what it expects."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Collection
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tampu.settings.durations import parse_duration

_TRUE = frozenset({"1", "t", "true", "y", "yes", "on"})
_FALSE = frozenset({"0", "f", "false", "n", "no", "off"})
_TRACE = 2
_DEFAULT_SIZE = 32 * 10**9
_NUMBER = re.compile(r"-?\d+(?:\.\d*)?", re.ASCII)
_PART = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
_RATE = re.compile(r"(\d+(?:\.\d+)?) *([KMG]?)I?B?(?:/S)?", re.ASCII)
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}


def count_from(least: int) -> Callable[[str], int]:
    """Return a parser of whole numbers from `least` up."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit()) or int(text) < least:
            raise ValueError(f"it must be a whole number of {least} or more")
        return int(text)

    return parse


def layers(text: str) -> int | None:
    """Return the number of layers; None for -1: as many as fit."""
    return None if text == "-1" else count_from(0)(text)


def shares(text: str) -> tuple[float, ...]:
    """Return shares, such as (3.0, 1.0) for "3,1"."""
    parts = tuple(float(part) if _PART.fullmatch(part) else -1.0 for part in texts(text))
    if min(parts, default=0) < 0 or not any(parts):
        raise ValueError("it must be numbers of 0 or more, one of them over 0, such as 3,1")
    return parts


def boolean(text: str) -> bool:
    """Return True for 1, true, yes and on, False for 0, false, no and off."""
    word = text.lower()
    if word not in _TRUE | _FALSE:
        raise ValueError("it must be 1 or 0, true or false")
    return word in _TRUE


def one_of(words: tuple[str, ...]) -> Callable[[str], str]:
    """Return a parser that accepts one of these words, ignoring case."""

    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(f"it must be one of {', '.join(words)}")
        return text.lower()

    return parse


def fetch_way(text: str) -> str:
    """Return how weights are prefetched: `auto`, or a way such as `t0:1024:8`."""
    word = text.lower()
    if word != "auto" and not re.fullmatch(r"(none|nta|t[012]):\d{1,7}:([1-9]|1[0-6])", word):
        raise ValueError(
            "it must be auto, or a hint (none, nta, t0, t1, t2), bytes ahead and streams "
            "(1 to 16), such as t0:1024:8"
        )
    return word


def log_level(text: str) -> int:
    """Return 0, 1 or 2."""
    return _TRACE if text == str(_TRACE) else int(boolean(text))


def seconds(text: str) -> float:
    """Return the seconds of "5m", "300" or "1.5"; they may be negative."""
    return float(text) if _NUMBER.fullmatch(text) else parse_duration(text)


def texts(text: str) -> tuple[str, ...]:
    """Return the parts of a list separated by commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def host(text: str) -> str:
    """Return a host name, with its port if there is one, in lower case."""
    if "/" in text or "@" in text or not text.isascii() or " " in text:
        raise ValueError("it must be a host name, with an optional port")
    return text.lower()


def image_hosts(text: str) -> tuple[str, ...]:
    """Return the parts of a list of hosts, with `on` for any; none for `off`."""
    parts = texts(text.lower())
    return () if parts == ("off",) else tuple(map(host, parts))


def urls(text: str) -> tuple[str, ...]:
    """Return the parts of a list of URLs; none for `off`."""
    parts = texts(text)
    if parts == ("off",):
        return ()
    for part in parts:
        parsed = urlsplit(part)
        is_url = parsed.scheme in ("http", "https") and parsed.hostname and parsed.port != 0
        if not is_url or "@" in parsed.netloc or parsed.fragment or not part.isascii():
            raise ValueError(
                "it must be URLs with http or https and without a login, separated by commas"
            )
    return parts


def realms(text: str) -> tuple[tuple[str, str], ...]:
    """Return pairs of "registry=host"."""
    pairs = [part.partition("=") for part in texts(text)]
    if not all(registry and realm for registry, _, realm in pairs):
        raise ValueError("it must be registry=host, several separated by commas")
    return tuple((host(registry.strip()), host(realm.strip())) for registry, _, realm in pairs)


def logins(text: str) -> tuple[tuple[str, str], ...]:
    """Return pairs of "registry=name:password"; %2C in a password is a comma, %25 a percent."""
    pairs = [part.partition("=") for part in texts(text)]
    if not all(registry and ":" in login for registry, _, login in pairs):
        raise ValueError("it must be registry=name:password, several separated by commas")
    return tuple((host(registry.strip()), unquote(login.strip())) for registry, _, login in pairs)


def parse_rate(text: str) -> int:
    """Return the bytes of a size such as "500KB", "10MB" or "700"."""
    match = _RATE.fullmatch(text.upper())
    if match is None or not float(match[1]):
        raise ValueError("it must be a number of bytes, such as 500KB or 10MB")
    return max(1, int(float(match[1]) * _UNITS[match[2]]))


def size_or_off(text: str) -> int:
    """Return the bytes of a size such as "20GB"; a default size for "on", 0 for "off"."""
    if text.lower() in _TRUE | _FALSE:
        return _DEFAULT_SIZE if boolean(text) else 0
    try:
        return size(text)
    except ValueError as error:
        raise ValueError(f"{error}, or on or off") from None


def size(text: str) -> int:
    """Return the bytes of a size such as "20GB"."""
    match = _RATE.fullmatch(text.upper())
    if match is None:
        raise ValueError("it must be bytes, such as 20GB")
    return int(float(match[1]) * _UNITS[match[2]])


def existing_path(text: str) -> Path | None:
    """Return the path if it exists, else None."""
    try:
        path = Path(text).expanduser()
        return path if path.exists() else None
    except (OSError, RuntimeError, ValueError):  # too long, an unknown user's home, a NUL
        return None


def suggestion(name: str, known: Collection[str]) -> str:
    """Return a hint for an unknown name: the known one that it resembles, else all of them."""
    near = near_name(name, known)
    return f"did you mean {near}?" if near else f"known: {', '.join(known)}"


def near_name(name: str, known: Collection[str]) -> str | None:
    """Return the known name that one resembles; None if it resembles none."""
    return next(iter(difflib.get_close_matches(name, known, 1)), None)


def path_of(text: str) -> Path:
    """Return a path; `~` is the home folder."""
    return Path(text).expanduser()


def seconds_or_forever(text: str) -> float:
    """Return `seconds`; infinity for a negative duration."""
    duration = seconds(text)
    return math.inf if duration < 0 else duration


def seconds_if_positive(text: str) -> float | None:
    """Return `seconds`; None (forever) for zero or a negative duration."""
    duration = seconds(text)
    return duration if duration > 0 else None


def count_unless_zero(text: str) -> int | None:
    """Return a whole number; None for 0."""
    return count_from(0)(text) or None


def count_or_auto(text: str) -> int | None:
    """Return a whole number; None for 0 and `auto`."""
    try:
        return None if text.lower() == "auto" else count_unless_zero(text)
    except ValueError as error:
        raise ValueError(f"{error}, or auto") from None
