"""Arranges large images on several tiles, as Llama 3.2, Llama 4 and InternVL do.

Of all arrangements up to a maximum number of tiles both Llamas take the one that enlarges the image
least or, if none fits, shrinks it least; of equal ones the smallest. InternVL takes the one whose
shape is nearest to the image's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tampu.vision.pixels import Filter, Floats, RGBImage, resize
from tampu.vision.sizes import check_elongation

_GRAY = 127


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Tiles, and the size that the image takes in their upper left corner.

    Attributes:
        rows: of tiles.
        columns: of tiles.
        height: of the image.
        width: of the image.
    """

    rows: int
    columns: int
    height: int
    width: int


def arrangements(most: int) -> list[tuple[int, int]]:
    """Return all (rows, columns) of at most `most` tiles, fewest rows first."""
    sides = range(1, most + 1)
    return [(rows, columns) for rows in sides for columns in sides if rows * columns <= most]


def arrange(height: int, width: int, *, side: int, most: int) -> Arrangement:
    """Arrange an image on tiles, keeping its aspect ratio; it is enlarged to at most one tile.

    Args:
        height: of the image.
        width: of the image.
        side: of a tile, in pixels.
        most: the maximum number of tiles.
    """
    rows, columns = _best(height, width, side, most)
    room = (min(max(height, side), rows * side), min(max(width, side), columns * side))
    return Arrangement(rows, columns, *_within(height, width, *room))


def _best(height: int, width: int, side: int, most: int) -> tuple[int, int]:
    """Return the rows and columns of the arrangement that changes the image's size least."""
    known = arrangements(most)
    scales = [min(r * side / height, c * side / width) for r, c in known]
    enlarging = [scale for scale in scales if scale >= 1]
    wanted = min(enlarging) if enlarging else max(scales)
    alike = [each for each, scale in zip(known, scales, strict=True) if scale == wanted]
    return min(alike, key=lambda each: each[0] * each[1])


def arrange_by_shape(
    height: int, width: int, *, side: int, fewest: int, most: int
) -> tuple[int, int]:
    """Return the rows and columns of the tiles whose shape is nearest to an image's.

    Of equal shapes it is the largest whose area is less than twice the image's.

    Args:
        height: of the image.
        width: of the image.
        side: of a tile, in pixels.
        fewest: the minimum number of tiles.
        most: the maximum number of tiles.
    """
    known = [(r, c) for c, r in arrangements(most) if r * c >= fewest]  # fewest columns first
    best, least = (1, 1), math.inf
    for rows, columns in sorted(known, key=lambda each: each[0] * each[1]):
        difference = abs(width / height - columns / rows)
        is_small = height * width > side**2 * rows * columns / 2
        if difference < least or (difference == least and is_small):
            best, least = (rows, columns), difference
    return best


def _within(height: int, width: int, most_rows: int, most_columns: int) -> tuple[int, int]:
    """Return the largest size of the same aspect ratio within a box."""
    by_height, by_width = most_rows / height, most_columns / width
    if by_width < by_height:
        return min(max(1, math.floor(height * by_width)), most_rows), most_columns
    return most_rows, min(max(1, math.floor(width * by_height)), most_columns)


def paste(image: RGBImage, arrangement: Arrangement, side: int) -> RGBImage:
    """Return a black canvas of all tiles with the image in its upper left corner."""
    canvas = np.zeros((arrangement.rows * side, arrangement.columns * side, 3), np.uint8)
    canvas[: image.shape[0], : image.shape[1]] = image
    return canvas


def tile_grid(
    height: int, width: int, *, side: int, fewest: int, most: int
) -> tuple[int, int] | None:
    """Return the rows and columns of an image's tiles; None: it has none (DeepSeek-OCR).

    The arguments are those of `arrange_by_shape`.
    """
    if max(height, width) <= side:
        return None
    return arrange_by_shape(height, width, side=side, fewest=fewest, most=most)


def on_square(image: RGBImage, side: int, method: Filter, *, rounds: bool = False) -> RGBImage:
    """Return the image as large as fits a gray square, in the middle (DeepSeek-OCR).

    Args:
        image: (any height, any width, 3).
        side: of the square, in pixels.
        method: the resampling filter.
        rounds: whether the place of the upper left corner is rounded, as Pillow's `pad` does it.

    Raises:
        RequestError: if one side is more than 200 times the other.
    """
    height, width = image.shape[:2]
    check_elongation(height, width, "image")
    scale = side / max(height, width)
    height, width = round(height * scale), round(width * scale)
    square = np.full((side, side, 3), _GRAY, np.uint8)
    free = (side - height, side - width)
    top, left = (round(each / 2) if rounds else each // 2 for each in free)
    square[top : top + height, left : left + width] = resize(image, height, width, method)
    return square


def cut_tiles(pixels: Floats, side: int) -> list[Floats]:
    """Return the tiles (side, side, 3) of a canvas, row by row."""
    height, width = pixels.shape[:2]
    return [
        pixels[y : y + side, x : x + side]
        for y in range(0, height, side)
        for x in range(0, width, side)
    ]
