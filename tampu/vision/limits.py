"""Limits of image files, and the form of decoded images; apart from the decoder, slow to import."""

from __future__ import annotations

import struct
from dataclasses import dataclass

# Of the sandbox's answer: height and width, then the pixels; 0 and 0, then the error.
SIZE = struct.Struct("<II")


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """Limits of images.

    Attributes:
        size_bytes: of a file.
        pixels: of an image.
        side: its width or height in pixels.
    """

    size_bytes: int = 20 << 20
    pixels: int = 50_000_000
    side: int = 16_384


DEFAULT_LIMITS = ImageLimits()
