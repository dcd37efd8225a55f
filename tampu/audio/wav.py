"""Decodes WAV files in NumPy: integers of 8 to 32 bits, and floats."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

from tampu.audio.decoded import DecodedSound
from tampu.audio.features import Samples
from tampu.audio.formats import DEFAULT_AUDIO_LIMITS, SAMPLE_RATE, AudioLimits, is_wav
from tampu.errors import RequestError

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_BITS = {_PCM: (8, 16, 24, 32), _FLOAT: (32, 64)}
_UNKNOWN_SIZES = (0, 0xFFFFFFFF)  # of programs that write to a pipe
_LARGEST = 0x7FFFF000  # and so are larger ones
_INT16 = 2**15 - 1
_BLOCK = 1 << 20  # samples of each channel that are converted at once


def decode_wav(data: bytes, limits: AudioLimits = DEFAULT_AUDIO_LIMITS) -> Samples:
    """Return the sound in a WAV file: mono, float32, 16,000 samples a second.

    Raises:
        RequestError: for another format or encoding, for a damaged or truncated file, and for one
            over a limit.
    """
    limits.check_size(data)
    if not is_wav(data):
        raise RequestError("the file is not a WAV file")
    try:
        head, content = _chunks(data)
        kind, channels, rate = struct.unpack_from("<HHI", head)
        [bits] = struct.unpack_from("<H", head, 14)
        if kind == _EXTENSIBLE:
            [kind] = struct.unpack_from("<H", head, 24)
    except struct.error as error:
        raise RequestError("the sound is damaged: the head of its WAV file is cut off") from error
    if bits not in _BITS.get(kind, ()):
        raise RequestError(
            "the sound is not supported: a WAV file must have integers of 8, 16, 24 or 32 bits, or "
            "floats of 32 or 64 bits; other codecs are read from other formats"
        )
    limits.check_samples(rate, channels)
    width = bits // 8 * channels
    limits.check_length(len(content) // width / rate)
    sound = DecodedSound(limits)
    for block in _blocks(content[: len(content) // width * width], width):
        values = _values(block, kind, bits)
        if not np.isfinite(values).all():
            raise RequestError(
                "the sound is damaged: its WAV file has samples that are not numbers"
            )
        sound.push(values.reshape(-1, channels).mean(axis=1, dtype=np.float32), rate)
    return sound.whole()


def wav_file(samples: Samples) -> bytes:
    """Return a decoded sound as a WAV file of 16 bits."""
    data = (np.clip(samples, -1, 1) * np.float32(_INT16)).astype("<i2").tobytes()
    form = struct.pack("<HHIIHH", _PCM, 1, SAMPLE_RATE, 2 * SAMPLE_RATE, 2, 16)
    chunks = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data"
    head = b"RIFF" + struct.pack("<I", len(chunks) + 4 + len(data)) + chunks
    return head + struct.pack("<I", len(data)) + data


def serve(request: bytes) -> bytes:
    """Decode a file, in the sandboxed process."""
    return DecodedSound.answer(decode_wav, request)


def _chunks(data: bytes) -> tuple[memoryview, memoryview]:
    """Return the contents of the chunks `fmt ` and `data`.

    Raises:
        RequestError: if one is missing or cut off.
    """
    found: dict[bytes, memoryview] = {}
    view, at = memoryview(data), 12
    while at + 8 <= len(data) and b"data" not in found:
        name, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
        is_open = name == b"data" and (size in _UNKNOWN_SIZES or size > _LARGEST)
        end = len(data) if is_open else at + 8 + size
        if end > len(data):
            raise RequestError("the sound is damaged: its WAV file is truncated, it ends too early")
        found[name] = view[at + 8 : end]
        at = end + size % 2
    if b"fmt " not in found or b"data" not in found:
        raise RequestError("the sound is damaged: its WAV file has no samples")
    return found[b"fmt "], found[b"data"]


def _blocks(content: memoryview, width: int) -> Iterator[memoryview]:
    for start in range(0, len(content), _BLOCK * width):
        yield content[start : start + _BLOCK * width]


def _values(block: memoryview, kind: int, bits: int) -> Samples:
    """Return the numbers in a part of the data, between -1 and 1."""
    if kind == _FLOAT:
        with np.errstate(over="ignore"):  # becomes infinite, which is refused
            return np.frombuffer(block, f"<f{bits // 8}").astype(np.float32)
    if bits == 8:
        return np.frombuffer(block, np.uint8).astype(np.float32) / np.float32(128) - np.float32(1)
    if bits == 24:
        padded = np.zeros((len(block) // 3, 4), np.uint8)
        padded[:, 1:] = np.frombuffer(block, np.uint8).reshape(-1, 3)
        return padded.view("<i4")[:, 0].astype(np.float32) / np.float32(2**31)
    values = np.frombuffer(block, f"<i{bits // 8}").astype(np.float32)
    return values / np.float32(2 ** (bits - 1))
