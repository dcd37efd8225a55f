"""Charts of speed by batch size, as text bars or as an SVG image."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from tampu.bench.bench import Result

TOKENS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Tokens per batch: one (decoding), a few (several sequences, speculation), many (prompts)."""
WIDTH = 48  # characters of the longest bar

COLORS = {"tampu": "#4c78a8", "llama.cpp": "#f58518"}
LEFT, TOP, RIGHT, BOTTOM = 60, 40, 620, 340  # edges of the plot


def chart(results: Sequence[Result]) -> str:
    """Return a bar for each number of tokens and engine; its length is the speed."""
    speeds = [
        speed for r in results for speed in (r.tokens_per_second, r.peer_tokens_per_second) if speed
    ]
    lines = []
    for result in results:
        for name, speed in (
            ("tampu", result.tokens_per_second),
            ("llama.cpp", result.peer_tokens_per_second),
        ):
            if not speed:
                continue
            bar = "█" * max(1, round(WIDTH * speed / max(speeds)))
            lines.append(f"{result.test:>6} {name:>9} {speed:>8.1f} {bar}")
    return "\n".join(lines)


def svg_chart(results: Sequence[Result], title: str) -> str:
    """Return an SVG with a line for each engine; both axes are logarithmic."""
    speeds: dict[str, list[float]] = {
        "tampu": [result.tokens_per_second for result in results],
        "llama.cpp": [result.peer_tokens_per_second or 0.0 for result in results],
    }
    steps = math.ceil(math.log2(max(max(each) for each in speeds.values()) / 8))
    lines = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 390" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="640" height="390" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="14">{escape(title)}</text>',
        f'<text x="{LEFT}" y="{BOTTOM + 38}">tokens computed at once</text>',
        *_grid(steps),
    ]
    for row, (name, values) in enumerate(speeds.items()):
        if not any(values):
            continue
        points = [_point(index, value, steps) for index, value in enumerate(values) if value > 0]
        text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        stroke = f'stroke="{COLORS[name]}" stroke-width="2.5"'
        lines.append(f'<polyline points="{text}" fill="none" {stroke}/>')
        place = f'x="{LEFT + 16}" y="{TOP + 20 + 18 * row}"'
        lines.append(f'<text {place} fill="{COLORS[name]}">{name}, tokens/s</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def _point(index: int, speed: float, steps: int) -> tuple[float, float]:
    x = LEFT + (RIGHT - LEFT) * index / (len(TOKENS) - 1)
    return x, BOTTOM - (BOTTOM - TOP) * max(math.log2(speed / 8), 0) / steps


def _grid(steps: int) -> Iterator[str]:
    for index, tokens in enumerate(TOKENS):
        x, _ = _point(index, 8, steps)
        yield f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{BOTTOM}" stroke="#e4e4e4"/>'
        yield f'<text x="{x - 6:.1f}" y="{BOTTOM + 18}">{tokens}</text>'
    for step in range(steps + 1):
        _, y = _point(0, 8 * 2**step, steps)
        yield f'<line x1="{LEFT}" y1="{y:.1f}" x2="{RIGHT}" y2="{y:.1f}" stroke="#e4e4e4"/>'
        yield f'<text x="{LEFT - 36}" y="{y + 4:.1f}">{8 * 2**step}</text>'
