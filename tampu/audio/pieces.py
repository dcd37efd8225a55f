"""A long sound cut at silences into pieces that a model hears one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from tampu.audio.features import HOP, Samples
from tampu.audio.formats import SAMPLE_RATE
from tampu.audio.voice_activity import Span, VoiceActivity, find_speech, levels

_SMOOTHED = 10  # frames whose mean level says where a long speech is cut


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutting:
    """How a sound is cut.

    Attributes:
        activity: what counts as speech.
        joined_s: neighbouring speech is one piece up to this length.
        longest_s: longer speech is cut at a quiet moment of its second half.
    """

    activity: VoiceActivity = field(default_factory=VoiceActivity)
    joined_s: float = 30.0
    longest_s: float = 30.0


def cut(samples: Samples, cutting: Cutting) -> list[Span]:
    """Return the pieces of a sound in order; they do not overlap, and silence is in none of them.

    Neither padding nor what is between joined speech is left out.
    """
    spans = find_speech(samples, cutting.activity)
    padding = cutting.activity.prefix_padding_ms * SAMPLE_RATE // 1000
    limits = [*(span.start for span in spans[1:]), len(samples)]
    padded = (
        Span(span.start, min(span.end + padding, limits[index])) for index, span in enumerate(spans)
    )
    return list(
        _joined((part for span in padded for part in _split(samples, span, cutting)), cutting)
    )


def _joined(spans: Iterator[Span], cutting: Cutting) -> Iterator[Span]:
    """Yield neighbours as one, as long as they are short enough together."""
    last: Span | None = None
    for span in spans:
        both = Span(last.start if last else span.start, span.end)
        if last and both.seconds > cutting.joined_s:
            yield last
            both = span
        last = both
    if last:
        yield last


def quietest(samples: Samples) -> int:
    """Return the sample at the quietest moment of a sound, which is a second long or longer."""
    smoothed = np.convolve(levels(samples), np.full(_SMOOTHED, 1 / _SMOOTHED), "valid")
    return (int(smoothed.argmin()) + _SMOOTHED // 2) * HOP


def _split(samples: Samples, span: Span, cutting: Cutting) -> Iterator[Span]:
    """Yield parts of at most the longest length, cut where the sound is quietest."""
    longest = int(cutting.longest_s * SAMPLE_RATE)
    while span.end - span.start > longest:
        begin = span.start + longest // 2
        at = begin + quietest(samples[begin : span.start + longest])
        yield Span(span.start, at)
        span = Span(at, span.end)
    yield span
