"""Decodes untrusted sound files other than WAV within limits.

PyAV (FFmpeg) reads them; it comes with the extra `audio`. The format follows from the first bytes,
among those of `tampu.audio.formats`; FFmpeg's own detection is not used. Of a file with several
tracks it is the first of sound.
"""

from __future__ import annotations

import io
import logging

import av
import numpy as np
import numpy.typing as npt
from av.audio.frame import AudioFrame
from av.container import InputContainer

from tampu.audio.decoded import DecodedSound
from tampu.audio.features import Samples
from tampu.audio.formats import DEFAULT_AUDIO_LIMITS, SUPPORTED, AudioLimits, format_of
from tampu.errors import RequestError

logger = logging.getLogger(__name__)

_BLOCK = 1 << 16  # samples that are resampled at once
_STATED = ("flac", "mov", "matroska")  # their heads say how long the whole file is
_MAY_LACK_S = 0.5  # of that length


def decode_compressed(data: bytes, limits: AudioLimits = DEFAULT_AUDIO_LIMITS) -> Samples:
    """Return the sound in a file: mono, float32, 16,000 samples a second.

    Raises:
        RequestError: for another format, for a damaged or truncated file, and for one over a limit.
    """
    limits.check_size(data)
    form = format_of(data)
    if form is None:
        raise RequestError(f"the sound's format is not supported; supported: {SUPPORTED}")
    try:
        with av.open(io.BytesIO(data), "r", format=form) as container:
            return _decoded(container, form, limits)
    except MemoryError as error:
        raise RequestError("no memory to decode the sound") from error
    except (av.FFmpegError, ValueError, IndexError, ArithmeticError, EOFError) as error:
        logger.info("a sound is damaged: %r", error)  # may contain details of this machine
        raise RequestError(
            "the sound is damaged or truncated, or its codec is not supported"
        ) from error


def serve(request: bytes) -> bytes:
    """Decode a file, in the sandboxed process."""
    return DecodedSound.answer(decode_compressed, request)


def _decoded(container: InputContainer, form: str, limits: AudioLimits) -> Samples:
    if not container.streams.audio:
        raise RequestError("the file has no sound")
    stream = container.streams.audio[0]
    stream.codec_context.thread_type = "NONE"
    stated_s = (container.duration or 0) / av.time_base if form in _STATED else 0.0
    limits.check_length(stated_s)
    sound = DecodedSound(limits)
    waiting: list[Samples] = []
    count = rate = 0
    for frame in container.decode(stream):
        if count >= _BLOCK or frame.sample_rate != rate:
            _push(sound, waiting, rate)
            count, rate = 0, frame.sample_rate
        limits.check_samples(rate, frame.layout.nb_channels)
        waiting.append(_mono(frame))
        count += frame.samples
    _push(sound, waiting, rate)
    samples = sound.whole()
    if sound.seconds < stated_s - _MAY_LACK_S:
        raise EOFError(f"{sound.seconds} of {stated_s} s")
    return samples


def _push(sound: DecodedSound, waiting: list[Samples], rate: int) -> None:
    """Move samples of one rate to a sound."""
    if waiting:
        sound.push(np.concatenate(waiting), rate)
        waiting.clear()


def _mono(frame: AudioFrame) -> Samples:
    """Return the mean of a frame's channels, between -1 and 1."""
    values: npt.NDArray[np.generic] = frame.to_ndarray()
    if not frame.format.is_planar:
        values = values.reshape(-1, frame.layout.nb_channels).T
    mean: Samples = values.mean(axis=0, dtype=np.float32)
    if values.dtype.kind == "u":  # 8 bits
        mean = (mean - 128) / np.float32(128)
    elif values.dtype.kind == "i":
        mean = mean / np.float32(2.0 ** (8 * values.dtype.itemsize - 1))
    if not np.isfinite(mean).all():
        raise ValueError("samples that are not numbers")
    return mean
