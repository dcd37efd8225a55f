"""The divergence at each position of a text, as an SVG image."""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape

import numpy as np
import numpy.typing as npt

from tampu.evaluation.comparison import Comparison

LEFT, TOP, RIGHT, BOTTOM = 70, 64, 620, 340  # edges of the plot
MAXIMUM, MEDIAN, OTHER_TOP = "#9ecae9", "#1f4e79", "#d9534f"
FLOOR = -7  # the least power of ten, in nats; smaller divergences are drawn there


def svg_picture(found: Comparison) -> str:
    """Return an SVG with the divergence along the text, and where the best tokens differ.

    A column has as many positions as the width demands: the light line is their largest
    divergence, the dark line their median, and a mark below is the darker, the more of them have
    another most probable token. The vertical axis is logarithmic.
    """
    kl = found.positions.kl
    columns = np.array_split(np.arange(len(kl)), min(len(kl), RIGHT - LEFT))
    top = max(math.ceil(math.log10(max(float(kl.max()), 10.0**FLOOR))), FLOOR + 1)
    title = f"{found.b} compared with {found.a}"
    lines = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 400" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="640" height="400" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="14">{escape(title)}</text>',
        f'<text x="{LEFT}" y="44">Kullback-Leibler divergence, nats: '
        f'<tspan fill="{MEDIAN}">median</tspan> and <tspan fill="#3a87ad">maximum</tspan> of '
        f"{math.ceil(len(kl) / len(columns))} positions; "
        f'<tspan fill="{OTHER_TOP}">another best token</tspan></text>',
        *_grid(top, len(kl)),
    ]
    for color, summary in ((MAXIMUM, np.max), (MEDIAN, np.median)):
        heights = [_height(float(summary(kl[each])), top) for each in columns]
        points = " ".join(
            f"{_place(index, len(columns)):.1f},{y:.1f}" for index, y in enumerate(heights)
        )
        lines.append(f'<polyline points="{points}" fill="none" stroke="{color}"/>')
    lines += _marks(columns, ~found.positions.same_best)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _marks(columns: list[npt.NDArray[np.int64]], differs: npt.NDArray[np.bool_]) -> Iterator[str]:
    for index, each in enumerate(columns):
        if (part := float(differs[each].mean())) > 0:
            x = _place(index, len(columns))
            yield (
                f'<line x1="{x:.1f}" y1="{BOTTOM + 4}" x2="{x:.1f}" y2="{BOTTOM + 12}" '
                f'stroke="{OTHER_TOP}" stroke-opacity="{max(part, 0.1):.2f}"/>'
            )


def _place(index: int, columns: int) -> float:
    return LEFT + (RIGHT - LEFT) * (index + 0.5) / columns


def _height(kl: float, top: int) -> float:
    power = max(math.log10(kl), FLOOR) if kl > 0 else FLOOR
    return BOTTOM - (BOTTOM - TOP) * (power - FLOOR) / (top - FLOOR)


def _grid(top: int, positions: int) -> Iterator[str]:
    for power in range(FLOOR, top + 1):
        y = _height(10.0**power, top)
        yield f'<line x1="{LEFT}" y1="{y:.1f}" x2="{RIGHT}" y2="{y:.1f}" stroke="#e4e4e4"/>'
        label = f'10<tspan dy="-4" font-size="9">{power}</tspan>'
        yield f'<text x="{LEFT - 36}" y="{y + 4:.1f}">{label}</text>'
    for part, anchor in enumerate(("start", "middle", "middle", "middle", "end")):
        x = LEFT + (RIGHT - LEFT) * part / 4
        yield (
            f'<text x="{x:.1f}" y="{BOTTOM + 28}" text-anchor="{anchor}">'
            f"{round(positions * part / 4)}</text>"
        )
    yield f'<text x="{LEFT}" y="{BOTTOM + 48}">scored tokens of the text</text>'
