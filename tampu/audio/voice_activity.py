"""Where speech is in a sound: frames that are louder than the noise around them.

The noise is the quietest frame of the last three seconds, as in Martin's minimum statistics (IEEE
Transactions on Speech and Audio Processing 9, 2001): it follows a noise that changes, and a steady
sound counts as noise. The settings are those of OpenAI's `server_vad`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tampu.audio.features import HOP, Samples
from tampu.audio.formats import SAMPLE_RATE

_FRAME = 2 * HOP  # samples; frames overlap by half
_MEMORY = 3 * SAMPLE_RATE // HOP  # frames among which the quietest is the noise
_FIRST_NOISE_DB = -50.0  # relative to full scale, before anything was heard
_QUIETEST_DB = -70.0  # nothing below it is speech
_RANGE_DB = 16.0  # above the noise, for a threshold of 1
_ONSET = 6  # frames in a row that begin speech: a click has fewer
_MS = SAMPLE_RATE // 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class VoiceActivity:
    """What counts as speech, and as its end.

    Attributes:
        threshold: 0 to 1: how much louder than the noise speech is; 0.5 are 8 dB.
        prefix_padding_ms: of the sound before speech that belongs to it.
        silence_duration_ms: so much silence ends it.
    """

    threshold: float = 0.5
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 500


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a sound.

    Attributes:
        start: its first sample.
        end: the sample behind its last.
    """

    start: int
    end: int

    @property
    def seconds(self) -> float:
        """How long it is."""
        return (self.end - self.start) / SAMPLE_RATE


class VoiceDetector:
    """Finds speech in a sound that comes in parts; what it finds does not depend on the parts.

    Attributes:
        start: the first sample of the speech that is going on, with its padding; None: there is
            silence.
    """

    def __init__(self, settings: VoiceActivity) -> None:
        self._margin_db = _RANGE_DB * settings.threshold
        self._padding = settings.prefix_padding_ms * _MS
        self._silence = max(1, settings.silence_duration_ms * _MS // HOP)  # frames
        self._waiting = np.empty(0, np.float32)
        self._noise = _Minimum(_MEMORY, _FIRST_NOISE_DB)
        self._frames = 0
        self._loud = self._quiet = 0  # frames in a row
        self._last_end = 0
        self.start: int | None = None

    def push(self, samples: Samples) -> Iterator[Span]:
        """Yield the speech that these samples end: from its padding to its last loud frame.

        The silence behind it has been heard by then.
        """
        waiting = np.concatenate([self._waiting, samples])
        count = max(0, (len(waiting) - _FRAME) // HOP + 1)
        self._waiting = waiting[count * HOP :]
        for level in levels(waiting)[:count].tolist():
            noise = self._noise.push(level)
            is_loud = level > max(noise + self._margin_db, _QUIETEST_DB)
            self._frames += 1
            if found := self._take(is_loud=is_loud):
                yield found

    def finish(self) -> Iterator[Span]:
        """Yield the speech that the end of the sound ends."""
        if self.start is not None:
            end = min((self._frames - self._quiet) * HOP + HOP, self.heard)
            yield self._ended(end)

    def end(self) -> None:
        """Take the speech that is going on as ended: other speech begins after a quiet frame."""
        if self.start is not None:
            self._ended(self.heard)

    @property
    def heard(self) -> int:
        """How many samples were pushed."""
        return self._frames * HOP + len(self._waiting)

    def _take(self, *, is_loud: bool) -> Span | None:
        self._loud = self._loud + 1 if is_loud else 0
        self._quiet = 0 if is_loud else self._quiet + 1
        if self.start is None and self._loud == _ONSET:
            first = (self._frames - _ONSET) * HOP
            self.start = max(self._last_end, first - self._padding)
        elif self.start is not None and self._quiet == self._silence:
            return self._ended((self._frames - self._quiet) * HOP + HOP)
        return None

    def _ended(self, end: int) -> Span:
        found = Span(self.start or 0, end)
        self.start, self._last_end, self._quiet = None, end, 0
        return found


class _Minimum:
    """The smallest of the last numbers, in constant time: those that can still become it."""

    def __init__(self, count: int, first: float) -> None:
        self._kept = deque([(first, count)])
        self._count, self._pushed = count, 0

    def push(self, number: float) -> float:
        """Take a number and return the smallest of those before it, and of itself."""
        self._pushed += 1
        while self._kept and self._kept[-1][0] >= number:
            self._kept.pop()
        self._kept.append((number, self._pushed + self._count))
        while self._kept[0][1] <= self._pushed:
            self._kept.popleft()
        return self._kept[0][0]


def levels(samples: Samples) -> npt.NDArray[np.float32]:
    """Return how loud each frame of 20 ms is, in dB of full scale, every `HOP` samples."""
    count = max(0, (len(samples) - _FRAME) // HOP + 1)
    halves = samples[: (count + 1) * HOP if count else 0].reshape(-1, HOP)
    energy = np.einsum("ij,ij->i", halves, halves)
    power = (energy[:-1] + energy[1:]) / _FRAME
    return np.asarray(10 * np.log10(np.maximum(power, 1e-10)), np.float32)


def find_speech(samples: Samples, settings: VoiceActivity) -> list[Span]:
    """Return the parts of a whole sound in which somebody speaks, in order."""
    detector = VoiceDetector(settings)
    return [*detector.push(samples), *detector.finish()]
