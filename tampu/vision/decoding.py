"""Decodes untrusted image files within limits.

The reader is chosen by the first bytes of the file, among five; Pillow's registry of formats, its
other readers and its warnings are not used. Size is checked before pixels are decoded.
"""

from __future__ import annotations

import io
import logging
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

import numpy as np
from PIL import Image, ImageOps
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from tampu.errors import RequestError
from tampu.vision.limits import DEFAULT_LIMITS, SIZE, ImageLimits
from tampu.vision.pixels import RGBImage

logger = logging.getLogger(__name__)

_Reader: TypeAlias = Callable[[io.BytesIO], ImageFile]

# What Pillow's readers raise on damaged files.
_DAMAGE = (
    OSError, SyntaxError, ValueError, IndexError, KeyError, TypeError, AttributeError, EOFError,
    OverflowError, ZeroDivisionError, RuntimeError, AssertionError, struct.error, zlib.error,
    Image.DecompressionBombError,
)  # fmt: skip
_SIXTEEN_BITS = ("I", "I;16", "I;16B", "I;16L", "I;16N")
_WHITE = (255, 255, 255)


def decode(data: bytes, limits: ImageLimits = DEFAULT_LIMITS) -> RGBImage:
    """Return the image in an image file: RGB, (height, width, 3).

    Of an animation it is the first frame. EXIF orientation is applied, and transparent pixels
    become white.

    Raises:
        RequestError: if the format is not PNG, JPEG, WebP, GIF or BMP, the file is damaged or ends
            too early, or it is over a limit.
    """
    if not data:
        raise RequestError("the image is empty")
    if len(data) > limits.size_bytes:
        raise RequestError(f"the image has {len(data)} bytes, the limit is {limits.size_bytes}")
    name, reader = _reader(data)
    try:
        with reader(io.BytesIO(data)) as image:
            _check_size(image.size, limits)
            image.load()
            _turn_upright(image)
            return np.array(_as_rgb(image))
    except MemoryError as error:
        raise RequestError(f"no memory to decode the {name} image") from error
    except Image.DecompressionBombError as error:
        raise RequestError(f"the {name} image is too large") from error
    except _DAMAGE as error:  # its text may contain details of this machine: for the log only
        logger.info("a %s image is damaged: %r", name, error)
        raise RequestError(f"the {name} image is damaged or truncated") from error


def serve(request: bytes) -> bytes:
    """Decode a file, in the sandboxed process."""
    try:
        image = decode(request)
    except RequestError as error:
        return SIZE.pack(0, 0) + str(error).encode()
    return b"".join([SIZE.pack(*image.shape[:2]), image.data])


def _reader(data: bytes) -> tuple[str, _Reader]:
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG", PngImageFile
    if data.startswith(b"\xff\xd8\xff"):
        return "JPEG", JpegImageFile
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "GIF", GifImageFile
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "WebP", WebPImageFile
    if data.startswith(b"BM"):
        return "BMP", BmpImageFile
    raise RequestError(
        "the image format is not supported; supported: PNG, JPEG, WebP, GIF and BMP; of videos: "
        "MP4, MOV, Matroska, WebM and AVI"
    )


def _check_size(size: tuple[int, int], limits: ImageLimits) -> None:
    width, height = size
    if min(size) < 1:
        raise RequestError(f"the image has no pixels: {width} x {height}")
    if max(size) > limits.side or width * height > limits.pixels:
        raise RequestError(
            f"the image is too large: {width} x {height}; the limits are {limits.pixels} pixels "
            f"and {limits.side} on a side"
        )


def _turn_upright(image: Image.Image) -> None:
    """Apply the EXIF orientation of an image; invalid EXIF data is ignored."""
    with suppress(*_DAMAGE):
        ImageOps.exif_transpose(image, in_place=True)


def _as_rgb(image: Image.Image) -> Image.Image:
    if image.mode in _SIXTEEN_BITS:
        deep = np.asarray(image).astype(np.int64)
        return Image.fromarray((deep >> 8).clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        layer = image if image.mode == "RGBA" else image.convert("RGBA")
        white = Image.new("RGB", layer.size, _WHITE)
        white.paste(layer, mask=layer)
        return white
    return image.convert("RGB")
