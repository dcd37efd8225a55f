"""Text in columns as Ollama prints it, without borders; sizes and times in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
# The limit in seconds up to which a unit is used, the unit's seconds, its name.
_UNITS = (
    (_HOUR, _MINUTE, "minute"),
    (2 * _DAY, _HOUR, "hour"),
    (14 * _DAY, _DAY, "day"),
    (60 * _DAY, 7 * _DAY, "week"),
    (730 * _DAY, 30 * _DAY, "month"),
    (float("inf"), 365 * _DAY, "year"),
)


def columns(rows: Iterable[Sequence[str]], *, gap: int = 4) -> list[str]:
    """Return rows of cells as lines; `gap` spaces follow the widest cell of each column."""
    listed = [*rows]
    widths = [max(map(len, column)) + gap for column in zip(*listed, strict=True)]
    return ["".join(map(str.ljust, row, widths)).rstrip() for row in listed]


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table with a line of titles."""
    return "\n".join(columns([titles, *rows]))


def human_bytes(count: float) -> str:
    """Return a size in decimal units: 4.7 GB, 815 MB, 12 B."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "KB")):
        if count >= unit:
            value = count / unit
            return f"{value:.0f} {name}" if value >= 10 else f"{value:.1f} {name}"
    return f"{count:.0f} B"


def human_age(seconds: float) -> str:
    """Return how long ago something was: 3 weeks ago."""
    return "Less than a second ago" if seconds < 1 else f"{human_span(seconds)} ago"


def human_span(seconds: float) -> str:
    """Return a duration in words, as Docker and Ollama print it."""
    if seconds < _MINUTE:
        return counted(int(seconds), "second")
    if seconds < 2 * _MINUTE:
        return "About a minute"
    if _HOUR <= seconds < 2 * _HOUR:
        return "About an hour"
    size, name = next((size, name) for most, size, name in _UNITS if seconds < most)
    return counted(int(seconds / size), name)


def counted(count: int, name: str) -> str:
    """Return a count with its noun: 1 model, 3 models."""
    return f"{count} {name}" if count == 1 else f"{count} {name}s"
