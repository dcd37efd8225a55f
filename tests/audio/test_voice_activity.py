"""Voice activity: speech is found between silences, and a long sound is cut there."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sounds import RATE, Floats, babble, pause

from tampu.audio.pieces import Cutting, cut
from tampu.audio.voice_activity import Span, VoiceActivity, VoiceDetector, find_speech

BARE = VoiceActivity(prefix_padding_ms=0)
NEAR = 0.06  # seconds by which an end may be off


def laid(*parts: Floats) -> Floats:
    return np.concatenate(parts)


def times(spans: list[Span]) -> list[tuple[float, float]]:
    return [(span.start / RATE, span.end / RATE) for span in spans]


@pytest.mark.parametrize("noise", [0.0, 0.0003, 0.003])
def test_speech_is_found_to_a_few_frames(noise: float) -> None:
    talk = laid(pause(1, 1, 0), babble(2, 2), pause(1, 3, 0), babble(3, 4), pause(2, 5, 0))
    [first, second] = times(find_speech(talk + pause(9, 6, noise), BARE))
    assert first == (pytest.approx(1, abs=0.1), pytest.approx(3, abs=0.1))
    assert second == (pytest.approx(4, abs=0.1), pytest.approx(7, abs=0.1))


def test_padding_and_the_silence_that_ends_speech_are_settings() -> None:
    talk = laid(pause(1), babble(1), pause(0.4), babble(1), pause(1))
    assert len(find_speech(talk, BARE)) == 1
    short = VoiceActivity(prefix_padding_ms=0, silence_duration_ms=200)
    assert len(find_speech(talk, short)) == 2
    [bare], [padded] = find_speech(talk, BARE), find_speech(talk, VoiceActivity())
    assert bare.start - padded.start == 0.3 * RATE
    assert bare.end == padded.end


def test_a_higher_threshold_needs_louder_speech() -> None:
    talk = laid(pause(4, 1, 0), babble(2, 2, 0.03), pause(2, 3, 0)) + pause(8, 4, 0.01)
    assert find_speech(talk, VoiceActivity(threshold=0.3))
    assert not find_speech(talk, VoiceActivity(threshold=1.0))


@pytest.mark.parametrize(
    "quiet",
    [
        np.zeros(2 * RATE, np.float32),
        np.zeros(0, np.float32),
        pause(2, 0, 0.001),
        np.where(np.arange(2 * RATE) % RATE < 100, np.float32(0.5), np.float32(0)),
    ],
    ids=["zeros", "empty", "noise", "clicks"],
)
def test_there_is_no_speech_in_silence(quiet: Floats) -> None:
    assert find_speech(quiet, VoiceActivity()) == []
    assert cut(quiet, Cutting()) == []


def test_a_noise_that_lasts_is_not_speech() -> None:
    [found] = find_speech(laid(pause(1), pause(20, 1, 0.05)), BARE)
    assert found.seconds < 5


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 20_000), max_size=8))
def test_what_is_found_does_not_depend_on_the_parts(sizes: list[int]) -> None:
    talk = laid(pause(0.3), babble(0.8), pause(0.7), babble(1, 1))
    whole = find_speech(talk, VoiceActivity())
    detector = VoiceDetector(VoiceActivity())
    found: list[Span] = []
    for start, end in pairwise([0, *np.cumsum(sizes).tolist(), len(talk)]):
        found += detector.push(talk[start:end])
    assert [*found, *detector.finish()] == whole
    assert detector.heard == len(talk)


def test_speech_is_known_to_go_on_before_it_ends() -> None:
    detector = VoiceDetector(BARE)
    assert not list(detector.push(laid(pause(1), babble(1))))
    assert detector.start == pytest.approx(RATE, abs=0.1 * RATE)
    [found] = detector.push(pause(0.7))
    assert found.start == pytest.approx(RATE, abs=0.1 * RATE)
    assert detector.start is None


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.2, 9), st.floats(0.6, 2)), min_size=1, max_size=4),
    st.sampled_from([2.0, 6.0, 30.0]),
)
def test_pieces_are_in_order_and_leave_no_speech_out(
    talks: list[tuple[float, float]], most: float
) -> None:
    parts = [part for talk, rest in talks for part in (babble(talk, 1), pause(rest, 2))]
    samples = laid(pause(0.5), *parts)
    cutting = Cutting(joined_s=most, longest_s=most)
    pieces = cut(samples, cutting)
    assert all(piece.seconds <= most + 0.3 for piece in pieces)
    assert all(one.end <= other.start for one, other in pairwise(pieces))
    assert pieces[0].start >= 0
    assert pieces[-1].end <= len(samples)
    for span in find_speech(samples, BARE):
        inside = sum(
            max(0, min(span.end, piece.end) - max(span.start, piece.start)) for piece in pieces
        )
        assert inside == span.end - span.start


def test_speech_without_a_pause_is_cut_where_it_is_quietest() -> None:
    samples = laid(babble(5.2, 1), pause(0.2, 2), babble(4, 3))
    first, second = cut(laid(pause(0.5), samples), Cutting(longest_s=8, joined_s=8))
    assert first.end == second.start
    assert 5.7 < first.end / RATE < 5.9


def test_neighbours_are_joined_up_to_a_length() -> None:
    samples = laid(*[part for _ in range(6) for part in (pause(1), babble(2))], pause(1))
    lengths = [len(cut(samples, Cutting(joined_s=most))) for most in (1, 6, 9, 30)]
    assert lengths == [6, 3, 2, 1]
