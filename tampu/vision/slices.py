"""Cuts large images into slices of one size, as MiniCPM-V does (arXiv:2403.11703, LLaVA-UHD).

Unlike tiles, slices have the image's shape: the whole and its slices are rectangles of about the
same area.
"""

from __future__ import annotations

import math

from tampu.vision.sizes import check_elongation


def slice_grid(height: int, width: int, *, side: int, most: int) -> tuple[int, int]:
    """Return into how many rows and columns an image is cut; (1, 1): it is not.

    Args:
        height: of the image.
        width: of the image.
        side: of a square of a slice's area, in pixels.
        most: the maximum number of slices.
    """
    wanted = min(math.ceil(height * width / side**2), most)
    best, least = (1, 1), math.inf
    for count in range(max(2, wanted - 1), min(wanted + 1, most) + 1) if wanted > 1 else ():
        for rows in (rows for rows in range(1, count + 1) if count % rows == 0):
            columns = count // rows
            error = abs(math.log(width / height) - math.log(columns / rows))
            if error < least or (error == least and rows > best[0]):
                best, least = (rows, columns), error
    return best


def fit_slice(
    height: float, width: float, *, side: int, multiple: int, enlarges: bool
) -> tuple[int, int]:
    """Return a size of nearly the same shape, in multiples, of about the area of a slice.

    Args:
        height: of the image.
        width: of the image.
        side: of a square of that area, in pixels.
        multiple: divides both sides.
        enlarges: whether smaller images become larger.

    Raises:
        RequestError: if one side is more than 200 times the other.
    """
    check_elongation(height, width, "image")
    if enlarges or height * width > side**2:
        ratio = width / height
        height = int(side / math.sqrt(ratio))
        width = int(height * ratio)
    return to_nearest(height, multiple), to_nearest(width, multiple)


def fit_slices(
    height: int, width: int, *, rows: int, columns: int, side: int, multiple: int
) -> tuple[int, int]:
    """Return the size of an image that is cut into rows and columns of slices, all alike.

    Args:
        height: of the image.
        width: of the image.
        rows: of slices.
        columns: of slices.
        side: as for `fit_slice`.
        multiple: as for `fit_slice`.

    Raises:
        RequestError: if one side of a slice is more than 200 times the other.
    """
    part = (to_nearest(height, rows) / rows, to_nearest(width, columns) / columns)
    down, across = fit_slice(*part, side=side, multiple=multiple, enlarges=True)
    return down * rows, across * columns


def to_nearest(length: float, multiple: int) -> int:
    """Return the multiple nearest to a length, not zero."""
    return max(round(length / multiple) * multiple, multiple)
