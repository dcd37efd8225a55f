"""The sound of a session: cut into utterances, bounded, none of it heard twice or lost."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sounds import RATE, Floats, babble, pause

from tampu.audio.voice_activity import VoiceActivity
from tampu.server.features.speech.realtime.input_buffer import (
    LONGEST_S,
    PIECE,
    Closed,
    InputBuffer,
    Opened,
    Utterance,
)


def pushed(buffer: InputBuffer, samples: Floats, piece: int = PIECE) -> list[Opened | Closed]:
    return [
        change
        for start in range(0, len(samples), piece)
        for change in buffer.push(samples[start : start + piece])
    ]


def closed(changes: list[Opened | Closed]) -> list[Utterance]:
    return [change.utterance for change in changes if isinstance(change, Closed)]


def talk(*seconds: tuple[float, float]) -> Floats:
    """Silence and speech by turns, then a second of silence."""
    parts = [
        part
        for number, (quiet, loud) in enumerate(seconds)
        for part in (pause(quiet, number), babble(loud, number))
    ]
    return np.concatenate([*parts, pause(1.2, 9)])


def test_speech_is_an_utterance_with_what_is_before_it() -> None:
    sound = talk((1, 2), (1.5, 1))
    changes = pushed(InputBuffer(VoiceActivity()), sound)
    assert [type(change) for change in changes] == [Opened, Closed] * 2
    assert all(change.is_speech for change in changes)
    first, second = closed(changes)
    for utterance, start, end in ((first, 1, 3), (second, 4.5, 5.5)):
        assert utterance.start / RATE == pytest.approx(start - 0.3, abs=0.1)
        assert (utterance.start + utterance.length) / RATE == pytest.approx(end + 0.5, abs=0.1)
        end_sample = utterance.start + utterance.length
        assert np.array_equal(utterance.samples(), sound[utterance.start : end_sample])


def test_without_detection_everything_belongs_to_what_the_client_commits() -> None:
    buffer, sound = InputBuffer(None), pause(1.5)
    [opened] = pushed(buffer, sound)
    assert not opened.is_speech
    assert buffer.length_ms == 1500
    utterance = buffer.commit().utterance
    assert np.array_equal(utterance.samples(), sound)
    assert buffer.length_ms == 0
    [again] = pushed(buffer, sound[:PIECE])
    assert again.utterance.start == len(sound)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.6, 4), st.floats(0.3, 50)), min_size=1, max_size=3),
    st.booleans(),
)
def test_utterances_are_bounded_in_order_and_equal_to_what_was_sent(
    turns: list[tuple[float, float]], detects: bool
) -> None:
    sound = talk(*turns)
    buffer = InputBuffer(VoiceActivity() if detects else None)
    changes = pushed(buffer, sound)
    if buffer.length_ms:
        changes.append(buffer.commit())
    utterances = closed(changes)
    assert {change.utterance.id for change in changes if isinstance(change, Opened)} == {
        each.id for each in utterances
    }
    for each in utterances:
        assert each.length <= LONGEST_S * RATE
        assert np.array_equal(each.samples(), sound[each.start : each.start + each.length])
    for one, other in pairwise(utterances):
        assert one.start + one.length <= other.start
    if not detects:
        assert sum(each.length for each in utterances) == len(sound)


def test_long_speech_is_cut_in_a_pause() -> None:
    sound = np.concatenate([babble(24, 1), pause(0.2, 2), babble(11, 3), pause(1, 4)])
    first, second = closed(pushed(InputBuffer(VoiceActivity()), sound))
    assert (first.start + first.length) / RATE == pytest.approx(24.1, abs=0.1)
    assert second.start == first.start + first.length


def test_what_is_cleared_is_forgotten_and_speech_is_found_again() -> None:
    buffer = InputBuffer(VoiceActivity())
    [opened] = pushed(buffer, np.concatenate([pause(1), babble(1)]))
    buffer.clear()
    assert opened.utterance.is_cleared
    assert not opened.utterance.samples().size
    assert pushed(buffer, pause(1, 2)) == []
    changes = pushed(buffer, talk((0.5, 1)))
    assert [type(change) for change in changes] == [Opened, Closed]


def test_a_commit_in_the_middle_of_speech_ends_it() -> None:
    buffer = InputBuffer(VoiceActivity())
    pushed(buffer, np.concatenate([pause(1), babble(1)]))
    assert buffer.commit().utterance.length > RATE
    assert pushed(buffer, pause(2, 2)) == []


def test_other_settings_commit_what_is_open() -> None:
    buffer = InputBuffer(None)
    [opened] = pushed(buffer, babble(1))
    assert buffer.detect(None) is None
    found = buffer.detect(VoiceActivity())
    assert found is not None
    assert found.utterance is opened.utterance
    assert found.utterance.is_committed
