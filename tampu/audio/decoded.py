"""A sound while its file is decoded: its samples at 16 kHz, within the limits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tampu.audio.features import Samples
from tampu.audio.formats import COUNT, SAMPLE_RATE, AudioLimits
from tampu.audio.resampling import Resampler
from tampu.errors import RequestError


class DecodedSound:
    """The samples so far; those beyond -1 and 1 are clipped, as all players do."""

    def __init__(self, limits: AudioLimits) -> None:
        """Raise an error as soon as it is longer than a limit."""
        self._limits = limits
        self._parts: list[Samples] = []
        self._count = 0
        self._resampler: Resampler | None = None
        self._rate = 0

    @property
    def seconds(self) -> float:
        """How long it is; a little of its end may not be counted yet."""
        return self._count / SAMPLE_RATE

    def push(self, samples: Samples, rate: int) -> None:
        """Add samples of one channel; the rate may change.

        Raises:
            RequestError: if it is too long then.
        """
        if self._resampler is None or rate != self._rate:
            self._end_of_rate()
            self._resampler, self._rate = Resampler(rate), rate
        self._add(self._resampler.push(samples))

    def whole(self) -> Samples:
        """Return all of it.

        Raises:
            RequestError: if there is nothing.
        """
        self._end_of_rate()
        if not self._count:
            raise RequestError("the sound is empty")
        return np.concatenate(self._parts)

    @staticmethod
    def answer(decode: Callable[[bytes], Samples], file: bytes) -> bytes:
        """Return what a sandboxed process answers: a decoded file, or the error."""
        try:
            samples = decode(file)
        except RequestError as error:
            return COUNT.pack(0) + str(error).encode()
        return b"".join([COUNT.pack(len(samples)), samples.data])

    def _end_of_rate(self) -> None:
        if self._resampler:
            self._add(self._resampler.finish())

    def _add(self, samples: Samples) -> None:
        self._parts.append(np.clip(samples, -1, 1))
        self._count += len(samples)
        self._limits.check_length(self.seconds)
