"""Resampling, normalizing and cutting images into patches."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

RGBImage: TypeAlias = npt.NDArray[np.uint8]
Floats: TypeAlias = npt.NDArray[np.float32]


class Filter(enum.IntEnum):
    """The resampling filter (Pillow's numbers)."""

    LANCZOS = 1
    BILINEAR = 2
    BICUBIC = 3


@dataclass(frozen=True, slots=True)
class Normalization:
    """Normalizes pixels as the encoder was trained: `image_mean` and `image_std` in transformers.

    Attributes:
        mean: of each color, in parts of 255; subtracted.
        std: of each color; divides the difference.
    """

    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def __call__(self, image: RGBImage | Floats) -> Floats:
        """Return (height, width, 3) as floats."""
        scale = (1 / (255 * np.asarray(self.std))).astype(np.float32)
        shift = (np.asarray(self.mean) / self.std).astype(np.float32)
        values: Floats = image.astype(np.float32) * scale - shift
        return values


HALF = Normalization((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
"""SigLIP's, Llama 4's: -1 to 1."""
UNIT = Normalization((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
"""0 to 1."""
CLIP = Normalization((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
"""The statistics of CLIP's training images."""
IMAGENET = Normalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""The statistics of ImageNet's images."""


def resize(
    image: RGBImage,
    height: int,
    width: int,
    method: Filter,
    box: tuple[float, float, float, float] | None = None,
) -> RGBImage:
    """Return the image in another size; each pixel is resampled from all pixels that it covers.

    Args:
        image: (any height, any width, 3).
        height: of the result.
        width: of the result.
        method: the resampling filter.
        box: left, upper, right and lower edge of the part to take; None: all of it.
    """
    if box is None and image.shape[:2] == (height, width):
        return image
    from PIL import Image  # slow to import; most requests have no image

    source = Image.fromarray(image)
    return np.asarray(source.resize((width, height), Image.Resampling(method), box))


def resize_floats(image: RGBImage, height: int, width: int, method: Filter) -> Floats:
    """Return the image in another size, in numbers of 0 to 255, with what exceeds these at edges.

    Args:
        image: (any height, any width, 3).
        height: of the result.
        width: of the result.
        method: the resampling filter.
    """
    values = image.astype(np.float32)
    if image.shape[:2] == (height, width):
        return values
    from PIL import Image  # slow to import; most requests have no image

    colors = (Image.fromarray(np.ascontiguousarray(values[..., color])) for color in range(3))
    sized = (color.resize((width, height), Image.Resampling(method)) for color in colors)
    return np.stack([np.asarray(color) for color in sized], -1)


def patches(pixels: Floats, side: int, block: int = 1) -> Floats:
    """Cut (height, width, 3) into squares: (patches, 3 * side * side), colors slowest.

    Args:
        pixels: whose height and width are multiples of `side` * `block`.
        side: of a patch, in pixels.
        block: patches are ordered row by row within blocks of this many on a side, and the blocks
            row by row.
    """
    height, width, colors = pixels.shape
    rows, columns = height // (side * block), width // (side * block)
    grid = pixels.reshape(rows, block, side, columns, block, side, colors)
    cut = grid.transpose(0, 3, 1, 4, 6, 2, 5)  # rows, columns, in the block, colors, in the patch
    return np.ascontiguousarray(cut).reshape(-1, colors * side * side)


def places(rows: int, columns: int, block: int = 1) -> npt.NDArray[np.int32]:
    """Return the (row, column) of each patch in the order of `patches`: (patches, 2)."""
    grid = np.indices((rows, columns), np.int32).transpose(1, 2, 0)
    blocks = grid.reshape(rows // block, block, columns // block, block, 2)
    return np.ascontiguousarray(blocks.transpose(0, 2, 1, 3, 4)).reshape(-1, 2)
