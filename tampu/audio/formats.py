"""Which files are sounds, by their content."""

from __future__ import annotations

SAMPLE_RATE = 16_000
"""Samples a second of a decoded sound; every encoder takes this rate."""

_MP3_SYNC = 0xFFE0  # the first 11 bits of a frame


def is_audio(file: bytes) -> bool:
    """Return whether a file is a sound; one with a track of pictures is a video.

    The first bytes identify WAV, FLAC, Ogg, MP3 and AAC; the tracks decide for MP4 and WebM.
    """
    if file.startswith(b"RIFF"):
        return file[8:12] == b"WAVE"
    if file.startswith((b"fLaC", b"OggS", b"ID3")):
        return True
    if file[4:8] == b"ftyp":
        return b"soun" in file and b"vide" not in file  # the kinds of handlers of tracks
    if file.startswith(b"\x1aE\xdf\xa3"):
        head = file[: 1 << 16]
        return b"A_" in head and b"V_" not in head  # the codecs of tracks
    return int.from_bytes(file[:2], "big") & _MP3_SYNC == _MP3_SYNC
