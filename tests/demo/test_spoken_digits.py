"""What the model of spoken digits is trained with, and measured with."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tools.train_digits import data, tokenizer
from tools.train_digits.batches import IGNORED, NOTHING, heard, row
from tools.train_digits.speech import Speaker, SpeechError


@pytest.fixture(scope="module")
def speaker() -> Speaker:
    return Speaker()


def test_no_voice_and_no_speed_is_trained_and_held_out() -> None:
    assert not {*data.TRAINED_VARIANTS} & {*data.HELD_OUT_VARIANTS}
    assert not {*data.TRAINED_SPEEDS} & {*data.HELD_OUT_SPEEDS}
    for said in data.held_out(50, 3):
        assert said.voice.partition("+")[2] in data.HELD_OUT_VARIANTS
        assert said.speed in data.HELD_OUT_SPEEDS


def test_every_voice_speaks(speaker: Speaker) -> None:
    for language in data.LANGUAGES:
        for variant in (*data.TRAINED_VARIANTS, *data.HELD_OUT_VARIANTS):
            assert np.abs(speaker.say("one", f"{language}+{variant}", 160, 50).samples).max() > 0.1


def test_a_voice_that_there_is_not_is_an_error(speaker: Speaker) -> None:
    with pytest.raises(SpeechError, match="'nobody'"):
        speaker.say("one", "nobody", 160, 50)


def test_the_same_seed_gives_the_same_utterances() -> None:
    """And not the same samples: espeak-ng keeps a state from one sound to the next."""
    assert data.held_out(9, 4) == data.held_out(9, 4)
    assert data.held_out(9, 4) != data.held_out(9, 5)


def test_the_positions_of_a_sound_say_its_digits_in_order(speaker: Speaker) -> None:
    rng = random.Random(2)
    for said in (data.trained(rng) for _ in range(20)):
        sound = heard(speaker, said)
        assert sound.counts == sorted(sound.counts)
        assert sound.counts[-1] == len(said.digits)
        spoken = {
            count: digit
            for count, digit in zip(sound.counts, sound.digits, strict=True)
            if digit != NOTHING
        }
        assert spoken == dict(enumerate(said.digits, 1))


def test_only_the_transcript_and_the_end_of_the_turn_are_learnt(speaker: Speaker) -> None:
    vocabulary = tokenizer.train()
    said = data.held_out(1, 5)[0]
    made = row(vocabulary, [(heard(speaker, said), "Transcribe."), (None, "Hello")])
    learnt = [label for label in made.labels if label != IGNORED]
    first = learnt[: learnt.index(tokenizer.TURN_END)]
    assert vocabulary.decode(first) == said.transcript
    assert made.ids.count(tokenizer.SOUND_PAD) == len(made.sounds[0].digits)
    assert len(made.ids) == len(made.labels)
