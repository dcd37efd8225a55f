"""Videos as models take them: some frames, resized, and their times.

`video_decoding` reads files, in a process of its own: PyAV (FFmpeg), which it needs, is large.
"""

from __future__ import annotations

import importlib.util
import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tampu.errors import RequestError

SETTINGS = struct.Struct("<dIIIQQ")
"""The settings, before a file, in what the decoder's process is given."""

SHAPE = struct.Struct("<III")
"""Frames, height and width, before times and pixels in its answer; 0: then the error."""

_BRANDS_OF_IMAGES = (b"heic", b"heix", b"heif", b"mif1", b"msf1", b"avif", b"avis")


@dataclass(frozen=True, slots=True)
class VideoSettings:
    """Which frames are taken, and their size.

    Attributes:
        fps: frames taken of each second.
        min_frames: at least so many are taken, if the video has them.
        max_frames: at most so many are taken.
        multiple: divides both sides of a frame.
        min_pixels: of all frames together.
        max_pixels: of all frames together.
    """

    fps: float
    min_frames: int
    max_frames: int
    multiple: int
    min_pixels: int
    max_pixels: int


@dataclass(frozen=True, slots=True, eq=False)
class Video:
    """The frames that were taken.

    Attributes:
        frames: uint8, (n, height, width, 3), n even: the last is there twice if need be.
        times: seconds from the beginning, (n,).
    """

    frames: npt.NDArray[np.uint8]
    times: npt.NDArray[np.float64]


def is_video(data: bytes) -> bool:
    """Return whether a file is of a format that is decoded, by its first bytes."""
    return format_of(data) is not None


def require_pyav() -> None:
    """Raise RequestError if PyAV is not installed."""
    if importlib.util.find_spec("av") is None:
        raise RequestError("videos need PyAV, which is not installed: pip install 'tampu[video]'")


def format_of(data: bytes) -> str | None:
    """Return FFmpeg's name of a file's format; None: not one that is decoded."""
    if data[4:8] == b"ftyp" and data[8:12] not in _BRANDS_OF_IMAGES:
        return "mov"
    if data.startswith(b"\x1aE\xdf\xa3"):
        return "matroska"
    if data.startswith(b"RIFF") and data[8:12] == b"AVI ":
        return "avi"
    return None
