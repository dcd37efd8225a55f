"""The sound of a session that is not transcribed yet, cut into utterances."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tampu.audio import SAMPLE_RATE, Samples
from tampu.audio.pieces import quietest
from tampu.audio.voice_activity import VoiceActivity, VoiceDetector

LONGEST_S = 30
"""A longer utterance is cut at the quietest moment of its last third: what is behind it is encoded
again, as the beginning of the next one."""

SHORTEST_MS = 100
"""OpenAI's limit of what can be committed."""

PIECE = SAMPLE_RATE // 25
"""Samples after which is looked whether speech has begun or ended."""

_MS = SAMPLE_RATE // 1000
_LONGEST = LONGEST_S * SAMPLE_RATE
_CUT = 2 * _LONGEST // 3
_ONSET = SAMPLE_RATE // 4  # samples that a detector needs until it knows that speech has begun


class Utterance:
    """A part of the sound, which grows until it is committed; one item of the conversation.

    Attributes:
        id: of its item.
        start: its first sample, counted from the beginning of the session.
        length: how many samples it has.
        is_committed: whether it is complete.
        is_cleared: whether the client does not want it any more.
        changed: is set when one of these changes.
    """

    def __init__(self, start: int, samples: Samples) -> None:
        """Begin with these samples, perhaps none."""
        self.id = f"item_{secrets.token_hex(12)}"
        self.start = start
        self._parts = [samples]
        self.length = len(samples)
        self.is_committed = self.is_cleared = False
        self.changed = asyncio.Event()

    @property
    def has_ended(self) -> bool:
        """Whether it does not grow any more."""
        return self.is_committed or self.is_cleared

    async def ended(self) -> None:
        """Wait until it does not grow any more."""
        while not self.has_ended:
            self.changed.clear()
            await self.changed.wait()

    def append(self, samples: Samples) -> None:
        """Add samples."""
        self._parts.append(samples)
        self.length += len(samples)
        self.changed.set()

    def samples(self) -> Samples:
        """Return all samples, as one array."""
        self._parts = [np.concatenate(self._parts)]
        return self._parts[0]

    def split(self, at: int) -> Samples:
        """Commit the first samples; return the others."""
        whole = self.samples()
        self._parts, self.length = [whole[:at].copy()], at
        self.commit()
        return whole[at:].copy()

    def commit(self) -> None:
        """Say that it is complete."""
        self.is_committed = True
        self.changed.set()

    def clear(self) -> None:
        """Say that it is not wanted, and forget its sound."""
        self.is_cleared = True
        self._parts = [np.empty(0, np.float32)]
        self.changed.set()


@dataclass(frozen=True, slots=True)
class Opened:
    """An utterance begins; `is_speech`: the detector has found it."""

    utterance: Utterance
    is_speech: bool


@dataclass(frozen=True, slots=True)
class Closed:
    """An utterance is complete; `is_speech` as in `Opened`, `end` is the sample behind its last."""

    utterance: Utterance
    is_speech: bool
    end: int


class InputBuffer:
    """What was heard and is not committed. Holds at most `LONGEST_S`, whatever is pushed."""

    def __init__(self, activity: VoiceActivity | None) -> None:
        """Find speech by these settings; None: every sound belongs to an utterance."""
        self._heard = self._committed = 0  # samples since the beginning of the session
        self._open: Utterance | None = None
        self._recent = np.empty(0, np.float32)
        self._activity = activity
        self._listen()

    def detect(self, activity: VoiceActivity | None) -> Closed | None:
        """Find speech by other settings from now on; what is open is complete by then."""
        if activity == self._activity:
            return None
        closed = self._close(is_speech=False) if self._open else None
        self._activity = activity
        self._listen()
        return closed

    @property
    def length_ms(self) -> float:
        """How long the utterance is that can be committed."""
        return self._open.length / _MS if self._open else 0.0

    def push(self, samples: Samples) -> Iterator[Opened | Closed]:
        """Take at most `PIECE` samples; yield what they begin and end."""
        self._heard += len(samples)
        if self._detector is None:
            yield from self._append(samples, is_speech=False)
            return
        self._recent = np.concatenate([self._recent, samples])[-self._kept :]
        ended = [*self._detector.push(samples)]
        is_speaking = self._detector.start is not None
        if self._open is not None:
            yield from self._append(samples, is_speech=True)
        elif is_speaking:
            yield self._open_at(self._began + (self._detector.start or 0))
        if ended and not is_speaking and self._open is not None:
            yield self._close(is_speech=True)

    def commit(self) -> Closed:
        """Complete the utterance that is open; there is one if `length_ms` is above 0."""
        if self._detector is not None:
            self._detector.end()
        return self._close(is_speech=False)

    def clear(self) -> None:
        """Forget what is not committed."""
        if self._open is not None:
            self._open.clear()
            self._open = None
        self._recent = np.empty(0, np.float32)
        self._committed = self._heard
        if self._detector is not None:
            self._detector.end()

    def _listen(self) -> None:
        activity = self._activity
        self._detector = VoiceDetector(activity) if activity else None
        self._began = self._heard
        self._kept = _ONSET + (activity.prefix_padding_ms * _MS if activity else 0)

    def _append(self, samples: Samples, *, is_speech: bool) -> Iterator[Opened | Closed]:
        if self._open is None:
            self._open = Utterance(self._heard - len(samples), samples)
            yield Opened(self._open, is_speech)
        else:
            self._open.append(samples)
        if self._open.length > _LONGEST:
            yield from self._cut(is_speech=is_speech)

    def _cut(self, *, is_speech: bool) -> Iterator[Opened | Closed]:
        """Commit the first part of an utterance that is too long; the other one goes on."""
        whole = self._open
        if whole is None:
            return
        at = _CUT + quietest(whole.samples()[_CUT:_LONGEST])
        rest = whole.split(at)
        yield Closed(whole, is_speech, whole.start + at)
        self._committed = whole.start + at
        self._open = Utterance(self._committed, rest)
        yield Opened(self._open, is_speech)

    def _open_at(self, start: int) -> Opened:
        first = max(start, self._committed, self._heard - len(self._recent))
        self._open = Utterance(first, self._recent[len(self._recent) - (self._heard - first) :])
        return Opened(self._open, is_speech=True)

    def _close(self, *, is_speech: bool) -> Closed:
        utterance = self._open
        if utterance is None:
            raise AssertionError("nothing is open")
        self._open, self._committed = None, self._heard
        utterance.commit()
        return Closed(utterance, is_speech, self._heard)
