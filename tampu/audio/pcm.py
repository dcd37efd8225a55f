"""Samples without a head, as they come over a connection: 16 bits, or G.711's 8.

Source: ITU-T G.711 for the two laws.
"""

from __future__ import annotations

from functools import cache
from typing import Literal, TypeAlias, get_args

import numpy as np

from tampu.audio.features import Samples
from tampu.errors import RequestError

Encoding: TypeAlias = Literal["audio/pcm", "audio/pcmu", "audio/pcma"]
"""OpenAI's names: 16 bits (little-endian, 24,000 a second), G.711's two laws (8,000 a second)."""

ENCODINGS: tuple[Encoding, ...] = get_args(Encoding)
_FULL_SCALE = np.float32(2**15)
_SIGN = 0x80
_BIAS_U, _BIAS_A = 33, 8  # of the two laws, in steps of 4 and of 16


def rate_of(encoding: Encoding) -> int:
    """Return how many samples a second an encoding has."""
    return 24_000 if encoding == "audio/pcm" else 8_000


def decode_pcm(data: bytes, encoding: Encoding) -> Samples:
    """Return the samples of one channel, between -1 and 1.

    Raises:
        RequestError: for a part of a sample.
    """
    if encoding != "audio/pcm":
        return _expanded(encoding)[np.frombuffer(data, np.uint8)]
    if len(data) % 2:
        raise RequestError(
            f"audio has {len(data)} bytes, but a sample of audio/pcm has two: send whole samples"
        )
    return np.frombuffer(data, "<i2").astype(np.float32) / _FULL_SCALE


@cache
def _expanded(encoding: Encoding) -> Samples:
    """Return the sample that each of the 256 bytes of a law stands for."""
    codes = np.arange(256)
    if encoding == "audio/pcmu":
        codes = ~codes & 0xFF
        steps = (((codes & 0x0F) << 1) + _BIAS_U << (codes >> 4 & 0x07)) - _BIAS_U
        values = np.where(codes & _SIGN, -steps, steps) * 4
    else:
        codes ^= 0x55
        segment = codes >> 4 & 0x07
        linear = ((codes & 0x0F) << 4) + _BIAS_A
        steps = np.where(segment > 0, linear + 0x100 << np.maximum(segment - 1, 0), linear)
        values = np.where(codes & _SIGN, steps, -steps)
    found: Samples = values.astype(np.float32) / _FULL_SCALE
    found.flags.writeable = False
    return found
