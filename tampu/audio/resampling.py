"""Resampling to 16 kHz: a band-limited interpolation, computed as products of matrices.

A sample between those that are given is a sum of them, weighted by a windowed sinc (Julius O.
Smith, "Digital Audio Resampling"; the window is Kaiser's). Frequencies above the half of the lower
rate are removed: by 90 dB from 8 kHz on.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from math import ceil

import numpy as np
import numpy.typing as npt

from tampu.audio.features import Samples
from tampu.audio.formats import SAMPLE_RATE

_CROSSINGS = 64  # zero crossings of the sinc on each side
_ROLLOFF = 0.95  # where the removal begins, of the half of the lower rate
_KAISER_BETA = 9.0
_MAX_PHASES = 640  # 11,025 needs so many; a rate that needs more is off by less than 1 in 1000
_OUTPUTS = 128  # of a product, at least
_BLOCKS = 256  # products computed at once, so that memory does not grow with the sound


class Resampler:
    """Resamples a sound that comes in parts; what it returns does not depend on the parts."""

    def __init__(self, rate: int) -> None:
        """Take so many samples a second."""
        ratio = Fraction(rate, SAMPLE_RATE)
        self._ratio = ratio.limit_denominator(_MAX_PHASES)
        self._weights: npt.NDArray[np.float32] | None = None
        self._taken = self._given = 0
        self._waiting = np.empty(0, np.float32)
        if self._ratio != 1:
            repeats = ceil(_OUTPUTS / self._ratio.denominator)
            self._step = self._ratio.numerator * repeats  # samples from one product to the next
            self._weights = _weights(self._ratio, repeats)
            self._margin = (len(self._weights) - self._step) // 2
            self._waiting = np.zeros(self._margin, np.float32)

    def push(self, samples: Samples) -> Samples:
        """Return the samples that can be computed with these and those before."""
        self._taken += len(samples)
        found = self._computed(samples)
        self._given += len(found)
        return found

    def finish(self) -> Samples:
        """Return the last samples, as if silence followed."""
        wanted = ceil(self._taken / self._ratio) - self._given
        if self._weights is None or wanted <= 0:
            return np.empty(0, np.float32)
        silence = np.zeros(len(self._weights) + self._step, np.float32)
        return self._computed(silence)[:wanted]

    def _computed(self, samples: Samples) -> Samples:
        if self._weights is None:
            return samples
        waiting = np.concatenate([self._waiting, samples])
        size = len(self._weights)
        count = max(0, (len(waiting) - size) // self._step + 1)
        self._waiting = waiting[count * self._step :].copy()
        if not count:
            return np.empty(0, np.float32)
        windows = np.lib.stride_tricks.sliding_window_view(waiting, size)[:: self._step][:count]
        starts = range(0, count, _BLOCKS)
        parts = [windows[start : start + _BLOCKS] @ self._weights for start in starts]
        found: Samples = np.concatenate(parts).reshape(-1)
        return found


def resample(samples: Samples, rate: int) -> Samples:
    """Return a whole sound of so many samples a second at 16 kHz."""
    resampler = Resampler(rate)
    return np.concatenate([resampler.push(samples), resampler.finish()])


@cache
def _weights(ratio: Fraction, repeats: int) -> npt.NDArray[np.float32]:
    """Return the weights (samples, outputs) of a product.

    Its first output lies `margin` samples after its first sample, where samples is twice the
    margin more than the outputs cover.
    """
    outputs = ratio.denominator * repeats
    cutoff = min(1.0, float(1 / ratio))
    margin = ceil(_CROSSINGS / cutoff) + 1
    samples = ratio.numerator * repeats + 2 * margin
    times = np.arange(outputs) * float(ratio) + margin - np.arange(samples)[:, None]
    inside = np.clip(1 - (times * cutoff / _CROSSINGS) ** 2, 0, None)
    window = np.where(np.abs(times) * cutoff < _CROSSINGS, np.i0(_KAISER_BETA * np.sqrt(inside)), 0)
    weights = np.sinc(times * cutoff * _ROLLOFF) * window
    normed: npt.NDArray[np.float32] = (weights / weights.sum(axis=0)).astype(np.float32)
    return normed
