"""Draws a part of a trace as SVG: `python -m tools.draw_trace TRACE.json OUT.svg FROM TO`.

FROM and TO are milliseconds since the trace began. The run loop is the upper lane, the device the
lower; a batch on the device says what it is made of.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

WIDTH, LANE, TOP = 1160, 44, 34
LANES = {1: ("run loop", 0), 2: ("device", 1)}
COLORS = {
    "plan": "#4c78a8", "prepare": "#72b7b2", "wait": "#e8e8e8", "sample": "#f58518",
    "deliver": "#b279a2", "batch": "#54a24b", "image": "#eeca3b", "sound": "#eeca3b",
}  # fmt: skip


def draw(events: list[dict[str, Any]], begin: float, end: float) -> str:
    """Return an SVG of the events between two times in milliseconds."""
    scale = (WIDTH - 90) / (end - begin)
    height = TOP + 2 * LANE + 46
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for name, row in LANES.values():
        lines.append(f'<text x="4" y="{TOP + row * LANE + 20}">{name}</text>')
    for event in events:
        lines += bar(event, begin, end, scale)
    lines += axis(begin, end, scale)
    for index, (name, color) in enumerate(COLORS.items()):
        x = 80 + 120 * index
        lines.append(f'<rect x="{x}" y="8" width="12" height="12" fill="{color}"/>')
        lines.append(f'<text x="{x + 16}" y="18">{name}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def bar(event: dict[str, Any], begin: float, end: float, scale: float) -> Iterator[str]:
    first = event["ts"] / 1000
    last = first + event["dur"] / 1000
    if last < begin or first > end:
        return
    x = 80 + (max(first, begin) - begin) * scale
    width = max((min(last, end) - max(first, begin)) * scale, 0.6)
    y = TOP + LANES[event["tid"]][1] * LANE
    color = COLORS.get(event["name"], "#999")
    yield f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="30" fill="{color}"/>'
    text = words(event)
    if text and width > 6 * len(text):
        yield f'<text x="{x + 4:.1f}" y="{y + 19}" fill="white">{escape(text)}</text>'


def words(event: dict[str, Any]) -> str:
    parts = event["args"].get("parts", []) if event["name"] == "batch" else []
    reads = sum(part["tokens"] for part in parts if part["phase"] == "prefill")
    answers = sum(part["phase"] == "decode" for part in parts)
    drafts = sum(part.get("drafts", 0) for part in parts)
    told = [
        f"{answers} answering" if answers else "",
        f"{drafts} drafts" if drafts else "",
        f"{reads} tokens read" if reads else "",
    ]
    return " + ".join(each for each in told if each)


def axis(begin: float, end: float, scale: float) -> Iterator[str]:
    y = TOP + 2 * LANE + 6
    for step in range(11):
        at = begin + (end - begin) * step / 10
        x = 80 + (at - begin) * scale
        yield f'<line x1="{x:.1f}" y1="{y - 8}" x2="{x:.1f}" y2="{y}" stroke="#666"/>'
        yield f'<text x="{x - 12:.1f}" y="{y + 14}">{at - begin:.0f} ms</text>'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("begin", type=float)
    parser.add_argument("end", type=float)
    arguments = parser.parse_args()
    events = [e for e in json.loads(arguments.trace.read_text()) if e.get("ph") == "X"]
    arguments.out.write_text(draw(events, arguments.begin, arguments.end))


if __name__ == "__main__":
    main()
