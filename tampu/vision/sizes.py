"""The size to which an image is resized for an encoder, as transformers' processors choose it."""

from __future__ import annotations

import math

from tampu.errors import RequestError
from tampu.vision.pixels import Filter, RGBImage, resize

_MAX_ELONGATION = 200
_RIBBON = 8


def fit_crop(image: RGBImage, side: int, method: Filter) -> RGBImage:
    """Return the middle of an image resized so that its shorter side is `side` (CLIP).

    Only the middle of a very elongated image is resampled, since the whole would become very long.
    The result may then differ by one level in a few pixels.
    """
    height, width = image.shape[:2]
    shorter = min(height, width)
    whole = (side * height // shorter, side * width // shorter)
    upper, left = ((length - side) // 2 for length in whole)
    if max(whole) <= _RIBBON * side:
        resized = resize(image, *whole, method)
        return resized[upper : upper + side, left : left + side]
    down, across = height / whole[0], width / whole[1]
    right, lower = min((left + side) * across, width), min((upper + side) * down, height)
    return resize(image, side, side, method, (left * across, upper * down, right, lower))


def fit_long_side(height: int, width: int, *, longest: int, multiple: int) -> tuple[int, int]:
    """Return a size within `longest` on both sides, then rounded up to multiples (Pixtral)."""
    ratio = max(height / longest, width / longest)
    if ratio > 1:
        height, width = max(1, int(height / ratio)), max(1, int(width / ratio))
    return -(-height // multiple) * multiple, -(-width // multiple) * multiple


def to_long_side(height: int, width: int, *, longest: int) -> tuple[int, int]:
    """Return a size whose longer side is `longest` and whose other is even (Idefics 3)."""
    ratio = width / height
    shorter = int(longest / ratio) if width >= height else int(longest * ratio)
    shorter = max(1, shorter + shorter % 2)
    return (shorter, longest) if width >= height else (longest, shorter)


def to_tiles(height: int, width: int, *, side: int) -> tuple[int, int]:
    """Return a size of nearly the same shape that whole tiles fill (Idefics 3)."""
    ratio = width / height
    if width >= height:
        width = -(-width // side) * side
        return -(-int(width / ratio) // side) * side, width
    height = -(-height // side) * side
    return height, -(-int(height * ratio) // side) * side


def fit_area(height: int, width: int, *, multiple: int, most: int) -> tuple[int, int]:
    """Return the largest size of nearly the same shape, in multiples (Gemma 4).

    Args:
        height: of the image.
        width: of the image.
        multiple: divides both sides.
        most: the largest number of pixels, at least those of one multiple in square.
    """
    grow = math.sqrt(most / (height * width))
    rows, columns = math.floor(grow * height / multiple), math.floor(grow * width / multiple)
    longest = most // multiple**2
    if not rows:
        rows, columns = 1, min(width // height, longest)
    elif not columns:
        rows, columns = min(height // width, longest), 1
    return rows * multiple, columns * multiple


def fit_video(
    frames: int,
    height: int,
    width: int,
    *,
    multiple: int,
    fewest: int,
    most: int,
    what: str = "video",
) -> tuple[int, int]:
    """Return the size of each of some frames, in multiples (Qwen3-VL, GLM-OCR).

    Args:
        frames: how many there are, at least two.
        height: of a frame.
        width: of a frame.
        multiple: divides both sides.
        fewest: pixels of all frames together.
        most: pixels of all frames together.
        what: what it is, for messages.

    Raises:
        RequestError: if one side is more than 200 times the other.
    """
    if min(height, width) < multiple:
        grow = max(multiple / height, multiple / width)
        height, width = int(height * grow), int(width * grow)
    check_elongation(height, width, what)
    rows, columns = round(height / multiple), round(width / multiple)
    pixels = round(frames / 2) * 2 * rows * columns * multiple**2
    if pixels > most:
        shrink = math.sqrt(frames * height * width / most)
        rows = max(1, math.floor(height / shrink / multiple))
        columns = max(1, math.floor(width / shrink / multiple))
    elif pixels < fewest:
        grow = math.sqrt(fewest / (frames * height * width))
        rows = math.ceil(height * grow / multiple)
        columns = math.ceil(width * grow / multiple)
    return rows * multiple, columns * multiple


def check_elongation(height: float, width: float, what: str) -> None:
    """Raise RequestError if one side is more than 200 times the other."""
    if max(height, width) > _MAX_ELONGATION * min(height, width):
        raise RequestError(
            f"the {what} is too elongated for this model: {round(width)} x {round(height)}, "
            f"at most {_MAX_ELONGATION} to 1"
        )


def fit_pixels(
    height: int, width: int, *, multiple: int, fewest: int, most: int
) -> tuple[int, int]:
    """Return a size of nearly the same shape, in multiples, within numbers of pixels (Qwen2-VL).

    Raises:
        RequestError: if one side is more than 200 times the other.
    """
    check_elongation(height, width, "image")
    rows, columns = round(height / multiple), round(width / multiple)
    return _within(height, width, rows, columns, multiple, fewest, most)


def _within(
    height: int, width: int, rows: int, columns: int, multiple: int, fewest: int, most: int
) -> tuple[int, int]:
    """Return the size of so many multiples, if its pixels are neither too few nor too many."""
    if rows * columns * multiple**2 > most:
        shrink = math.sqrt(height * width / most)
        rows = max(1, math.floor(height / shrink / multiple))
        columns = max(1, math.floor(width / shrink / multiple))
    elif rows * columns * multiple**2 < fewest:
        grow = math.sqrt(fewest / (height * width))
        rows = math.ceil(height * grow / multiple)
        columns = math.ceil(width * grow / multiple)
    return rows * multiple, columns * multiple


def fit_patches(
    height: int, width: int, *, side: int, merge: int, fewest: int, most: int
) -> tuple[int, int]:
    """Return the rows and columns of patches of nearly the same shape (Nemotron's RADIO).

    Args:
        height: of the image.
        width: of the image.
        side: of a patch, in pixels.
        merge: divides the rows and the columns.
        fewest: patches.
        most: patches, at least `merge` squared.

    Raises:
        RequestError: if one side is more than 200 times the other.
    """
    check_elongation(height, width, "image")
    rows, columns = (round(length / side + 0.5) for length in (height, width))
    shrink = min(math.sqrt(most / (rows * columns)), 1.0)
    rows, columns = (max(1, math.floor(shrink * count)) for count in (rows, columns))
    if most > fewest > rows * columns:
        grow = math.sqrt(fewest / (rows * columns))
        rows, columns = (math.ceil(grow * count) for count in (rows, columns))
    rows = _to_multiple(rows, merge, most // columns)
    return rows, _to_multiple(columns, merge, most // rows)


def _to_multiple(count: int, multiple: int, most: int) -> int:
    """Return the next multiple, or the one before if that is more than `most`."""
    above = -(-count // multiple) * multiple
    return above if above <= most or above == count else max(multiple, above - multiple)


def fit_squares(
    height: int, width: int, *, multiple: int, fewest: int, most: int
) -> tuple[int, int]:
    """Return a size as `fit_pixels` does, where each side has a multiple at once (LFM2-VL).

    Raises:
        RequestError: if one side is more than 200 times the other.
    """
    check_elongation(height, width, "image")
    rows, columns = (max(1, round(side / multiple)) for side in (height, width))
    return _within(height, width, rows, columns, multiple, fewest, most)


def fit_whole(height: int, width: int, *, multiple: int, fewest: int, most: int) -> tuple[int, int]:
    """Return a size as `fit_pixels` does, where a side below a multiple becomes one (PaddleOCR-VL).

    Raises:
        RequestError: if one side is more than 200 times the other.
    """
    if height < multiple:
        height, width = multiple, round(width * multiple / height)
    if width < multiple:
        height, width = round(height * multiple / width), multiple
    return fit_pixels(height, width, multiple=multiple, fewest=fewest, most=most)
