"""Speech of espeak-ng: ``python -m tools.train_digits.speech "four zero seven" FILE.wav``.

The library comes from PyPI's espeakng-loader and is under the GPL: it speaks while a model is
trained and while tests run, and neither its program nor its voices are part of tampu.
"""

from __future__ import annotations

import argparse
import ctypes
import wave
from dataclasses import dataclass
from typing import Any

import espeakng_loader
import numpy as np

from tampu.audio.features import Samples
from tampu.audio.formats import SAMPLE_RATE
from tampu.audio.resampling import resample

_SYNCHRONOUS, _UTF8, _CHARACTERS = 2, 1, 1  # espeak-ng's numbers, of speak_lib.h
_RATE, _PITCH = 1, 3
_WORD, _LAST = 1, 0


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", ctypes.c_char * 8),
    )


_Callback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
)


@dataclass(frozen=True, slots=True)
class Speech:
    """A text as it is spoken.

    Attributes:
        samples: 16,000 a second, between -1 and 1.
        starts: where each word begins, in seconds.
    """

    samples: Samples
    starts: tuple[float, ...]


class SpeechError(Exception):
    """espeak-ng refused what it was asked."""


class Speaker:
    """The library. It has one state for the whole process: make one, and use it in one thread."""

    def __init__(self) -> None:
        """Load the library and its data.

        Raises:
            SpeechError: if it does not start.
        """
        self._library = ctypes.CDLL(espeakng_loader.get_library_path())
        data = espeakng_loader.get_data_path().encode()
        self._rate: int = self._library.espeak_Initialize(_SYNCHRONOUS, 0, data, 0)
        if self._rate <= 0:
            raise SpeechError(f"espeak-ng did not start: {self._rate}")
        self._parts: list[Samples] = []
        self._starts: list[float] = []
        self._callback = _Callback(self._take)
        self._library.espeak_SetSynthCallback(self._callback)

    def say(self, text: str, voice: str, speed: int, pitch: int) -> Speech:
        """Speak a text.

        Args:
            text: English.
            voice: a language and a variant, as `en-us+f1`.
            speed: words a minute, 80 to 450.
            pitch: 0 to 99.

        Raises:
            SpeechError: for a voice or a value that there is not.
        """
        encoded = text.encode()
        self._parts.clear()
        self._starts.clear()
        self._check(voice, self._library.espeak_SetVoiceByName(voice.encode()))
        self._check("speed", self._library.espeak_SetParameter(_RATE, speed, 0))
        self._check("pitch", self._library.espeak_SetParameter(_PITCH, pitch, 0))
        size = len(encoded) + 1
        self._check(
            text,
            self._library.espeak_Synth(encoded, size, 0, _CHARACTERS, 0, _UTF8, None, None),
        )
        samples = np.concatenate(self._parts) / np.float32(32768)
        return Speech(resample(samples, self._rate), tuple(self._starts))

    def _check(self, what: str, code: int) -> None:
        if code:
            raise SpeechError(f"espeak-ng refused {what!r}: {code}")

    def _take(self, samples: Any, count: int, events: Any) -> int:
        """Keep samples, of 16 bits, and where words begin; 0 lets espeak-ng go on."""
        if samples and count > 0:
            self._parts.append(np.ctypeslib.as_array(samples, (count,)).astype(np.float32))
        index = 0
        while events and events[index].type != _LAST:
            if events[index].type == _WORD:
                self._starts.append(events[index].audio_position / 1000)
            index += 1
        return 0


def main() -> None:
    """Parse the command line, speak and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", help="what is said, in English")
    parser.add_argument("file", help="the WAV file to write")
    parser.add_argument("--voice", default="en-us", help="a language, or one with a variant")
    parser.add_argument("--speed", type=int, default=160, help="words a minute")
    parser.add_argument("--pitch", type=int, default=50, help="0 to 99")
    args = parser.parse_args()
    speech = Speaker().say(args.text, args.voice, args.speed, args.pitch)
    samples = np.pad(speech.samples, SAMPLE_RATE // 4)  # silence before and after
    with wave.open(args.file, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE)
        file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())


if __name__ == "__main__":
    main()
