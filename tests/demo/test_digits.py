"""The built-in model `digits` tells spoken digits, of voices and speeds that it never heard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.sounds import wav

from tampu import Engine
from tampu.audio import SAMPLE_RATE, Samples
from tools.train_digits import data, turns
from tools.train_digits.evaluate import SLOTS, measure
from tools.train_digits.speech import Speaker

EXAMPLES = 60
REQUIRED = 0.95


@pytest.fixture(scope="module")
def digits() -> Iterator[Engine]:
    with Engine.load("digits", context=1024, slots=SLOTS) as engine:
        engine.generate("a", max_tokens=1)  # its threads are there before the first test begins
        yield engine


@pytest.fixture(scope="module")
def speaker() -> Speaker:
    return Speaker()


def hear(engine: Engine, *sounds: Samples | Path, text: str = "") -> str:
    message: dict[str, Any] = {"role": "user", "content": text, "audio": [*sounds]}
    return engine.chat([message], temperature=0.0).text


def test_held_out_voices_and_speeds_are_heard_right_in_95_of_100_cases(digits: Engine) -> None:
    wrong = measure(digits, data.held_out(EXAMPLES, 11))
    assert len(wrong) <= (1 - REQUIRED) * EXAMPLES, wrong


@pytest.mark.parametrize("text", ["", "Transcribe.", "Which digits do you hear?", "xyz"])
def test_a_file_is_heard_whatever_the_text_beside_it(
    digits: Engine, speaker: Speaker, tmp_path: Path, text: str
) -> None:
    spoken = speaker.say("four zero seven two", "en-us", 160, 50).samples
    (tmp_path / "code.wav").write_bytes(wav(np.pad(spoken, 4000)))
    assert hear(digits, tmp_path / "code.wav", text=text) == "4 0 7 2"


def test_silence_has_an_empty_transcript(digits: Engine) -> None:
    assert hear(digits, np.zeros(2 * SAMPLE_RATE, np.float32)) == ""


def test_a_message_without_a_sound_is_answered_with_what_the_model_is_for(digits: Engine) -> None:
    message = {"role": "user", "content": "Hello"}
    assert digits.chat([message], temperature=0.0).text == turns.NO_SOUND


def test_a_second_sound_of_a_conversation_is_heard(digits: Engine, speaker: Speaker) -> None:
    first, second = (
        np.pad(speaker.say(text, "en-us", 160, 50).samples, 4000)
        for text in ("three one", "nine nine five")
    )
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "", "audio": [first]},
        {"role": "assistant", "content": "3 1"},
        {"role": "user", "content": "", "audio": [second]},
    ]
    assert digits.chat(messages, temperature=0.0).text == "9 9 5"
