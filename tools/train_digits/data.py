"""Spoken digits: which voices say them, how fast, how high, and in what noise.

Some voices and some speeds are never trained with: `held_out` draws those.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from tampu.audio.features import Samples
from tampu.audio.formats import SAMPLE_RATE
from tools.train_digits.speech import Speaker

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
LANGUAGES = ("en-us", "en", "en-gb-x-rp")
HELD_OUT_VARIANTS = ("Michael", "f2", "linda", "m3")
TRAINED_VARIANTS = (
    "Andrea", "Annie", "Denis", "Mike", "Reed", "adam", "belinda", "edward", "f1", "f3", "f4", "f5",
    "m1", "m2", "m4", "m5", "m6", "m7", "steph", "victor",
)  # fmt: skip
HELD_OUT_SPEEDS = (*range(135, 145), *range(165, 175))
TRAINED_SPEEDS = tuple(speed for speed in range(110, 196) if speed not in HELD_OUT_SPEEDS)
MOST_DIGITS = 8
MAX_SECONDS = 10.0
_PITCHES = range(30, 71)
_SEPARATORS = (" ", " ", " ", ", ")
_SILENT = 0.04  # the share of sounds without a word


@dataclass(frozen=True, slots=True)
class Utterance:
    """What is said, and how.

    Attributes:
        digits: none: there is only noise, or silence.
        text: as it is given to espeak-ng.
        voice: a language and a variant.
        speed: words a minute.
        pitch: 0 to 99.
        before: seconds without speech.
        after: seconds without speech.
        loudest: the largest sample of the speech.
        noise: decibels from the speech down to the noise.
        color: 0: as much noise at all frequencies; 0.9: more at the low ones.
        seed: of the noise.
    """

    digits: tuple[int, ...]
    text: str
    voice: str
    speed: int
    pitch: int
    before: float
    after: float
    loudest: float
    noise: float
    color: float
    seed: int

    @property
    def transcript(self) -> str:
        """The digits as the model writes them: `4 0 7`."""
        return " ".join(str(digit) for digit in self.digits)


def draw(
    rng: random.Random, variants: tuple[str, ...], speeds: tuple[int, ...], most: int
) -> Utterance:
    """Return an utterance of 1 to `most` digits, rarely of none."""
    count = 0 if rng.random() < _SILENT else rng.randint(1, most)
    digits = tuple(rng.randrange(10) for _ in range(count))
    separator = rng.choice(_SEPARATORS)
    return Utterance(
        digits=digits,
        text=separator.join(WORDS[digit] for digit in digits),
        voice=f"{rng.choice(LANGUAGES)}+{rng.choice(variants)}",
        speed=rng.choice(speeds),
        pitch=rng.choice(_PITCHES),
        before=rng.uniform(0.0, 0.5),
        after=rng.uniform(0.1, 0.5),
        loudest=10 ** rng.uniform(-1.0, -0.05),
        noise=rng.choice((80.0, rng.uniform(20.0, 50.0))),
        color=rng.choice((0.0, rng.uniform(0.0, 0.95))),
        seed=rng.getrandbits(32),
    )


def trained(rng: random.Random, most: int = MOST_DIGITS) -> Utterance:
    """Return an utterance to train with."""
    return draw(rng, TRAINED_VARIANTS, TRAINED_SPEEDS, most)


def held_out(count: int, seed: int) -> list[Utterance]:
    """Return utterances of voices, and at speeds, that were never trained with."""
    rng = random.Random(f"held out {seed}")
    return [draw(rng, HELD_OUT_VARIANTS, HELD_OUT_SPEEDS, MOST_DIGITS) for _ in range(count)]


@dataclass(frozen=True, slots=True)
class Sound:
    """An utterance that was spoken.

    Attributes:
        samples: float32, 16,000 a second.
        starts: where each digit begins, in seconds.
        speech: the samples without noise.
    """

    samples: Samples
    starts: tuple[float, ...]
    speech: Samples


def spoken(speaker: Speaker, said: Utterance) -> Sound:
    """Return the sound of an utterance."""
    speech: Samples = np.zeros(round(0.3 * SAMPLE_RATE), np.float32)
    starts: tuple[float, ...] = ()
    if said.digits:
        found = speaker.say(said.text, said.voice, said.speed, said.pitch)
        speech = found.samples * np.float32(said.loudest / np.abs(found.samples).max())
        starts = tuple(said.before + start for start in found.starts)
    strength = said.loudest * 0.2  # about the mean of speech whose largest sample is `loudest`
    ends = (round(said.before * SAMPLE_RATE), round(said.after * SAMPLE_RATE))
    speech = np.pad(speech, ends)[: round(MAX_SECONDS * SAMPLE_RATE)]
    noise = np.random.default_rng(said.seed).normal(size=len(speech)).astype(np.float32)
    noise = _colored(noise, said.color)
    noise *= strength * 10 ** (-said.noise / 20) / (float(noise.std()) + 1e-9)
    return Sound(np.clip(speech + noise, -1, 1), starts, speech)


def _colored(noise: Samples, color: float) -> Samples:
    """Return noise with low frequencies raised: a filter of one pole."""
    if not color:
        return noise
    size = 1 << len(noise).bit_length()
    frequencies = np.exp(-2j * np.pi * np.arange(size // 2 + 1) / size)
    spectrum = np.fft.rfft(noise, size) / (1 - color * frequencies)
    return np.fft.irfft(spectrum, size)[: len(noise)].astype(np.float32)
