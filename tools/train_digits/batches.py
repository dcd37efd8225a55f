"""Conversations as the model is trained with them: tokens, spectrograms, and what is learnt."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from tampu.audio import whisper_log_mel
from tampu.audio.features import Features
from tampu.audio.formats import SAMPLE_RATE
from tools.train_digits import data, turns
from tools.train_digits.model import BINS, CHUNK, positions, time_of
from tools.train_digits.speech import Speaker
from tools.train_digits.tokenizer import END, SOUND, SOUND_END, SOUND_PAD, TURN, TURN_END

POOL, SIZE = 256, 32
IGNORED = -100
NOTHING = 10  # where no digit is spoken
_SHORTEST = 8000  # samples, as the encoder fills them up
_NO_SOUND, _FOLLOWED = 0.03, 0.1  # shares of conversations
_QUIET = 0.03  # of the loudest: no digit is heard there
_HALF = round(0.04 * SAMPLE_RATE)  # of a position


@dataclass(frozen=True, slots=True)
class Heard:
    """A sound as it is trained with.

    Attributes:
        frames: its spectrogram (frames, bins).
        digits: of each position: which is spoken then, or `NOTHING`.
        counts: of each position: how many digits have begun.
        transcript: what the model is to write.
    """

    frames: Features
    digits: list[int]
    counts: list[int]
    transcript: str


@dataclass(frozen=True, slots=True)
class Row:
    """A conversation.

    Attributes:
        ids: its tokens.
        labels: the same where the model speaks, else `IGNORED`.
        sounds: in it.
    """

    ids: list[int]
    labels: list[int]
    sounds: list[Heard]


@dataclass(frozen=True, slots=True)
class Batch:
    """Several conversations, filled up to one length.

    Attributes:
        ids, labels, mask: (conversations, tokens).
        sounds: (sounds, bins, frames).
        sounds_mask: (sounds, frames).
        digits, counts: of the positions of all sounds, one after the other.
    """

    ids: Tensor
    labels: Tensor
    mask: Tensor
    sounds: Tensor
    sounds_mask: Tensor
    digits: Tensor
    counts: Tensor


def heard(speaker: Speaker, said: data.Utterance) -> Heard:
    """Return an utterance as it is trained with."""
    sound = data.spoken(speaker, said)
    samples = np.pad(sound.samples, (0, max(0, _SHORTEST - len(sound.samples))))
    frames = whisper_log_mel(samples, BINS)
    times = [time_of(position) for position in range(positions(len(frames)))]
    counts = [sum(start <= time for start in sound.starts) for time in times]
    quiet = _QUIET * float(np.abs(sound.speech).max())
    digits = [
        said.digits[count - 1] if count and _strength(sound, time) > quiet else NOTHING
        for time, count in zip(times, counts, strict=True)
    ]
    return Heard(frames, digits, counts, said.transcript)


def _strength(sound: data.Sound, time: float) -> float:
    middle = round(time * SAMPLE_RATE)
    part = sound.speech[max(0, middle - _HALF) : middle + _HALF]
    return float(np.sqrt(np.mean(part**2))) if len(part) else 0.0


def row(tokenizer: Tokenizer, exchanges: Sequence[tuple[Heard | None, str]]) -> Row:
    """Return a conversation of sounds, each with the text beside it; some have no sound."""
    made = Row([], [], [])
    newline = tokenizer.encode("\n").ids
    for sound, text in exchanges:
        prompt = [TURN, *tokenizer.encode("user\n").ids]
        if sound:
            prompt += [SOUND, *[SOUND_PAD] * len(sound.digits), SOUND_END]
            made.sounds.append(sound)
        prompt += [*tokenizer.encode(text).ids, TURN_END, *newline, TURN]
        prompt += tokenizer.encode("assistant\n").ids
        answer = sound.transcript if sound else turns.NO_SOUND
        said = [*tokenizer.encode(answer).ids, TURN_END]
        made.ids.extend([*prompt, *said, *newline])
        made.labels.extend([IGNORED] * len(prompt) + said + [IGNORED] * len(newline))
    return made


class Source:
    """Batches without end; what they hold follows from the seed and the number of the pool."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        """Draw with this seed."""
        self._tokenizer, self._seed, self._speaker = tokenizer, seed, Speaker()

    def pool(self, number: int, most: int) -> Iterator[Batch]:
        """Yield the batches of a pool, with sounds of up to `most` digits."""
        rng = random.Random(f"{self._seed} {number}")
        rows = sorted((self._row(rng, most) for _ in range(POOL)), key=_frames)
        batches = [rows[start : start + SIZE] for start in range(0, POOL, SIZE)]
        rng.shuffle(batches)
        yield from (batch(rows) for rows in batches)

    def _row(self, rng: random.Random, most: int) -> Row:
        if rng.random() < _NO_SOUND:
            return row(self._tokenizer, [(None, turns.greeting(rng))])
        count = 2 if rng.random() < _FOLLOWED else 1
        drawn = [(data.trained(rng, most), turns.asked(rng)) for _ in range(count)]
        return row(self._tokenizer, [(heard(self._speaker, said), text) for said, text in drawn])


def batch(rows: Sequence[Row]) -> Batch:
    """Return conversations side by side."""
    width = max(len(each.ids) for each in rows)
    sounds = [sound for each in rows for sound in each.sounds]
    longest = max((len(sound.frames) for sound in sounds), default=1)
    frames = -(-longest // CHUNK) * CHUNK
    maps = np.zeros((len(sounds), BINS, frames), np.float32)
    mask = np.zeros((len(sounds), frames), np.int64)
    for index, sound in enumerate(sounds):
        maps[index, :, : len(sound.frames)] = sound.frames.T
        mask[index, : len(sound.frames)] = 1

    def filled(values: list[list[int]], filler: int) -> Tensor:
        return torch.tensor([each + [filler] * (width - len(each)) for each in values])

    return Batch(
        ids=filled([each.ids for each in rows], END),
        labels=filled([each.labels for each in rows], IGNORED),
        mask=filled([[1] * len(each.ids) for each in rows], 0),
        sounds=torch.from_numpy(maps),
        sounds_mask=torch.from_numpy(mask),
        digits=torch.tensor([digit for sound in sounds for digit in sound.digits]),
        counts=torch.tensor([count for sound in sounds for count in sound.counts]),
    )


def _frames(made: Row) -> int:
    return max((len(sound.frames) for sound in made.sounds), default=0)
