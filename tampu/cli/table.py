"""Tables as Ollama prints them, without borders; sizes and times in words."""

from __future__ import annotations

from collections.abc import Sequence

_GAP = "    "
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
# The most seconds that are told in a unit, its seconds, its name.
_UNITS = (
    (_HOUR, _MINUTE, "minute"),
    (2 * _DAY, _HOUR, "hour"),
    (14 * _DAY, _DAY, "day"),
    (60 * _DAY, 7 * _DAY, "week"),
    (730 * _DAY, 30 * _DAY, "month"),
    (float("inf"), 365 * _DAY, "year"),
)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table, its columns as wide as they need to be."""
    lines = [columns, *rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    return "\n".join(
        _GAP.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


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
    """Return a span of time in words, as Docker and Ollama say it."""
    if seconds < _MINUTE:
        return counted(int(seconds), "second")
    if seconds < 2 * _MINUTE:
        return "About a minute"
    if _HOUR <= seconds < 2 * _HOUR:
        return "About an hour"
    size, name = next((size, name) for most, size, name in _UNITS if seconds < most)
    return counted(int(seconds / size), name)


def counted(count: int, name: str) -> str:
    """Return a count with what is counted: 1 model, 3 models."""
    return f"{count} {name}" if count == 1 else f"{count} {name}s"
