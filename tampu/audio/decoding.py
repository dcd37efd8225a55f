"""Decodes WAV files to mono samples at 16 kHz."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

from tampu.audio.features import Samples
from tampu.audio.formats import SAMPLE_RATE
from tampu.errors import RequestError

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE


def decode(data: bytes) -> Samples:
    """Return the sound in a WAV file: mono, float32, 16,000 samples a second.

    Raises:
        RequestError: for another format, encoding or rate, and for a damaged file.
    """
    if not data.startswith(b"RIFF") or data[8:12] != b"WAVE":
        raise RequestError("the sound's format is not supported; supported: WAV")
    chunks = dict(_chunks(data))
    try:
        kind, channels, rate = struct.unpack_from("<HHI", chunks[b"fmt "])
        bits = struct.unpack_from("<H", chunks[b"fmt "], 14)[0]
        if kind == _EXTENSIBLE:
            kind = struct.unpack_from("<H", chunks[b"fmt "], 24)[0]
        content = chunks[b"data"]
    except (KeyError, struct.error) as error:
        raise RequestError("the WAV file is damaged or truncated") from error
    if (kind, bits) not in ((_PCM, 16), (_FLOAT, 32)) or channels < 1:
        raise RequestError("a WAV file must have samples of 16 bits, or floats of 32 bits")
    if rate != SAMPLE_RATE:
        raise RequestError(f"a WAV file must have {SAMPLE_RATE} samples a second, not {rate}")
    whole = len(content) // (bits // 8 * channels) * channels  # the last may be cut off
    values = np.frombuffer(content, "<i2" if kind == _PCM else "<f4", whole)
    if not values.size:
        raise RequestError("the sound is empty")
    samples = values.astype(np.float32) / (32768 if kind == _PCM else 1)
    if not np.isfinite(samples).all():
        raise RequestError("the WAV file has samples that are not numbers")
    mono: Samples = samples.reshape(-1, channels).mean(axis=1, dtype=np.float32)
    return mono


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the name and the content of each chunk; the last may be cut off."""
    at = 12
    while at + 8 <= len(data):
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        yield data[at : at + 4], data[at + 8 : at + 8 + size]
        at += 8 + size + size % 2
