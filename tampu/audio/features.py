"""Log-mel spectrograms: how loud each band of frequencies is, every ten milliseconds.

Sources: arXiv:2212.04356 (Whisper), arXiv:2303.01037 (the Universal Speech Model, Gemma's).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tampu.audio.formats import SAMPLE_RATE

Samples: TypeAlias = npt.NDArray[np.float32]
"""A decoded sound: mono, (samples,), `SAMPLE_RATE` a second, between -1 and 1."""

Features: TypeAlias = npt.NDArray[np.float32]
_Numbers: TypeAlias = npt.NDArray[np.float64]

HOP = 160
"""Samples from one frame to the next: 10 ms."""

_WHISPER_FRAME = 400
_GEMMA_FRAME, _GEMMA_FFT = 320, 512
_HIGHEST_HZ = 8000.0
_WHISPER_FLOOR, _GEMMA_FLOOR = 1e-10, 1e-3
_RANGE = 8.0  # powers of ten below the loudest that are kept
_LINEAR_HZ = 1000.0  # Slaney's scale is linear below and logarithmic above
_LINEAR_MELS = 15.0
_LOG_STEP = np.log(6.4) / 27
_BLOCK = 3000  # frames transformed at once, so that memory does not grow with the sound


def whisper_log_mel(samples: Samples, bins: int) -> Features:
    """Return the spectrogram of a whole sound as Whisper takes it: (samples // 160, bins).

    Args:
        samples: at least 201; the caller pads them.
        bins: 80, or 128 since Whisper large-v3.
    """
    padded = np.pad(samples, _WHISPER_FRAME // 2, mode="reflect")
    count = len(samples) // HOP
    filters = _filters(bins, _WHISPER_FRAME, "slaney")
    mel = _mel(padded, count, _WHISPER_FRAME, _WHISPER_FRAME, lambda x: np.abs(x) ** 2, filters)
    log = np.log10(np.maximum(mel, _WHISPER_FLOOR))
    log = np.maximum(log, log.max(initial=-np.inf) - _RANGE)
    found: Features = ((log + 4) / 4).astype(np.float32)
    return found


def gemma_log_mel(samples: Samples, bins: int = 128) -> Features:
    """Return the spectrogram of a sound as Gemma 3n and 4 take it: (frames, bins).

    Frames whose samples are not all there are left out.
    """
    padded = np.pad(samples, (_GEMMA_FRAME // 2, 0))
    count = max(0, (len(padded) - _GEMMA_FRAME - 1) // HOP + 1)
    filters = _filters(bins, _GEMMA_FFT, "htk")
    mel = _mel(padded, count, _GEMMA_FRAME, _GEMMA_FFT, np.abs, filters)
    return np.log(mel + _GEMMA_FLOOR).astype(np.float32)


def _mel(
    padded: Samples,
    count: int,
    frame: int,
    transformed: int,
    strength: Callable[[npt.NDArray[np.complex128]], _Numbers],
    filters: _Numbers,
) -> _Numbers:
    """Return the bands (count, bins) of frames that lie `HOP` samples apart."""
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(frame) / frame)).astype(np.float32)
    if not count:
        return np.empty((0, filters.shape[1]))
    frames = np.lib.stride_tricks.sliding_window_view(padded, frame)[::HOP][:count]
    blocks = (frames[start : start + _BLOCK] for start in range(0, count, _BLOCK))
    spectra = (strength(np.fft.rfft(block * window, transformed)) @ filters for block in blocks)
    return np.concatenate(list(spectra))


@cache
def _filters(bins: int, transformed: int, scale: str) -> _Numbers:
    """Return the weights (frequencies, bins) of triangles that are equally wide in mels.

    Slaney's are of equal area; HTK's of equal height.
    """
    frequencies = np.arange(transformed // 2 + 1) * (SAMPLE_RATE / transformed)
    if scale == "slaney":
        edges = _slaney_hz(np.linspace(0, _slaney_mel(_HIGHEST_HZ), bins + 2))
    else:
        highest = 2595 * np.log10(1 + _HIGHEST_HZ / 700)
        edges = 700 * (10 ** (np.linspace(0, highest, bins + 2) / 2595) - 1)
    rising = (frequencies[:, None] - edges[:-2]) / np.diff(edges)[:-1]
    falling = (edges[2:] - frequencies[:, None]) / np.diff(edges)[1:]
    weights: _Numbers = np.maximum(0, np.minimum(rising, falling))
    if scale == "slaney":
        weights *= 2 / (edges[2:] - edges[:-2])
    return weights


def _slaney_mel(hertz: float) -> float:
    return float(_LINEAR_MELS + np.log(hertz / _LINEAR_HZ) / _LOG_STEP)  # above 1000 Hz


def _slaney_hz(mels: _Numbers) -> _Numbers:
    above = _LINEAR_HZ * np.exp(_LOG_STEP * (mels - _LINEAR_MELS))
    return np.where(mels < _LINEAR_MELS, mels * (_LINEAR_HZ / _LINEAR_MELS), above)
