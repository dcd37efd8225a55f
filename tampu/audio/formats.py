"""Which files are sounds, by their content, and the limits of those that are decoded."""

from __future__ import annotations

import importlib.util
import re
import struct
from dataclasses import dataclass

from tampu.errors import RequestError

SAMPLE_RATE = 16_000
"""Samples a second of a decoded sound; every encoder takes this rate."""

SUPPORTED = "WAV, FLAC, MP3, Ogg, AAC, M4A, WebM and Matroska"

COUNT = struct.Struct("<I")
"""The number of samples, before them in the answer of a decoder's process; 0: then the error."""

_MP3_SYNC = 0xFFE0  # the first 11 bits of a frame
_LAYER = 0x0006  # 0 in the head of a frame of AAC
_EBML = b"\x1aE\xdf\xa3"
_SOUND_TRACK = re.compile(rb"hdlr.{8}soun", re.DOTALL)  # boxes of MP4 that name a track's kind
_VIDEO_TRACK = re.compile(rb"hdlr.{8}vide", re.DOTALL)


@dataclass(frozen=True, slots=True)
class AudioLimits:
    """Limits of sounds.

    Attributes:
        size_bytes: of a file.
        seconds: its length.
        rate: samples a second in the file.
        channels: in the file.
    """

    size_bytes: int = 128 << 20
    seconds: float = 3600.0
    rate: int = 384_000
    channels: int = 16

    def check_size(self, data: bytes) -> None:
        """Raise RequestError for a file that is empty or too large."""
        if not data:
            raise RequestError("the sound is empty")
        if len(data) > self.size_bytes:
            raise RequestError(
                f"the sound has {len(data)} bytes, the limit is {self.size_bytes}: compress it, or "
                "cut it into parts"
            )

    def check_length(self, seconds: float) -> None:
        """Raise RequestError for a sound that is too long."""
        if seconds > self.seconds:
            raise RequestError(
                f"the sound has {seconds:.0f} seconds or more, the limit is {self.seconds:.0f}: "
                "cut it into parts"
            )

    def check_samples(self, rate: int, channels: int) -> None:
        """Raise RequestError for a rate or a number of channels that no sound has."""
        if not 1000 <= rate <= self.rate:
            raise RequestError(
                f"the sound has {rate} samples a second; 1000 to {self.rate} are supported"
            )
        if not 1 <= channels <= self.channels:
            raise RequestError(
                f"the sound has {channels} channels; 1 to {self.channels} are supported"
            )


DEFAULT_AUDIO_LIMITS = AudioLimits()


def is_wav(file: bytes) -> bool:
    """Return whether a file is a WAV file."""
    return file.startswith(b"RIFF") and file[8:12] == b"WAVE"


def is_audio(file: bytes) -> bool:
    """Return whether a file is a sound; one with a track of pictures is a video.

    The first bytes identify WAV, FLAC, Ogg, MP3 and AAC; the tracks decide for MP4 and WebM.
    """
    if file[4:8] == b"ftyp":
        return _SOUND_TRACK.search(file) is not None and _VIDEO_TRACK.search(file) is None
    if file.startswith(_EBML):
        head = file[: 1 << 16]
        return b"A_" in head and b"V_" not in head  # the codecs of tracks
    return is_wav(file) or format_of(file) is not None


def check_audio(file: bytes) -> None:
    """Raise RequestError for a file that is empty, or not a sound of a supported format."""
    if not file:
        raise RequestError("the sound is empty")
    if not is_audio(file):
        raise RequestError(f"the sound's format is not supported; supported: {SUPPORTED}")


def format_of(file: bytes) -> str | None:
    """Return FFmpeg's name of a file's format; None: not one that it decodes here."""
    if file[4:8] == b"ftyp":
        return "mov"
    if file.startswith(_EBML):
        return "matroska"
    if file.startswith(b"fLaC"):
        return "flac"
    if file.startswith(b"OggS"):
        return "ogg"
    if file.startswith(b"ID3"):
        return "mp3"
    head = int.from_bytes(file[:2], "big")
    if head & _MP3_SYNC == _MP3_SYNC:
        return "mp3" if head & _LAYER else "aac"
    return None


def require_pyav() -> None:
    """Raise RequestError if PyAV is not installed."""
    if importlib.util.find_spec("av") is None:
        raise RequestError(
            "sounds other than WAV need PyAV, which is not installed: pip install 'tampu[audio]'"
        )
