"""Small drawings of coloured shapes."""

from __future__ import annotations

import random
from dataclasses import dataclass

from PIL import Image, ImageDraw

SIZE = 64
_SCALE = 3
COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (215, 30, 35),
    "green": (35, 150, 50),
    "blue": (35, 70, 215),
    "yellow": (245, 220, 40),
    "orange": (245, 135, 20),
    "purple": (135, 45, 165),
    "black": (12, 12, 12),
    "white": (248, 248, 248),
}
SHAPES = ("circle", "square", "triangle")
POSITIONS = (
    "at the top left", "at the top", "at the top right",
    "at the left", "in the centre", "at the right",
    "at the bottom left", "at the bottom", "at the bottom right",
)  # fmt: skip

Colour = tuple[int, int, int]


@dataclass(frozen=True)
class Shape:
    """One drawn thing; ``position`` is an index into ``POSITIONS``."""

    colour: str
    shape: str
    position: int


def _outline(shape: str, x: float, y: float, r: float) -> list[tuple[float, float]]:
    if shape == "square":
        return [(x - r, y - r), (x + r, y - r), (x + r, y + r), (x - r, y + r)]
    return [(x, y - r), (x + r, y + r), (x - r, y + r)]


def _near(one: Colour, other: Colour) -> bool:
    return sum(abs(a - b) for a, b in zip(one, other, strict=True)) < 150


def _background(rng: random.Random, shapes: list[Shape]) -> Colour:
    while True:
        kind = rng.random()
        if kind < 0.3:
            colour = (255, 255, 255)
        elif kind < 0.4:
            colour = (0, 0, 0)
        else:
            grey = rng.randrange(60, 250)
            r, g, b = (max(0, min(255, grey + rng.randrange(-18, 19))) for _ in range(3))
            colour = (r, g, b)
        if not any(_near(colour, COLOURS[s.colour]) for s in shapes):
            return colour


def draw(rng: random.Random, shapes: list[Shape]) -> Image.Image:
    """Draw the shapes with noise in hue, size, place and background."""
    side = SIZE * _SCALE
    image = Image.new("RGB", (side, side), _background(rng, shapes))
    pen = ImageDraw.Draw(image)
    cell = side / 3
    for s in shapes:
        row, column = divmod(s.position, 3)
        r = cell * rng.uniform(0.33, 0.45)
        slack = cell * 0.46 - r  # it stays inside its cell, so that no two touch
        x = min(max((column + 0.5) * cell + rng.uniform(-slack, slack), r), side - r)
        y = min(max((row + 0.5) * cell + rng.uniform(-slack, slack), r), side - r)
        red, green, blue = (
            max(0, min(255, part + rng.randrange(-14, 15))) for part in COLOURS[s.colour]
        )
        if s.shape == "circle":
            pen.ellipse((x - r, y - r, x + r, y + r), fill=(red, green, blue))
        else:
            pen.polygon(_outline(s.shape, x, y, r), fill=(red, green, blue))
    picture = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    picture.info["scene"] = shapes
    return picture
