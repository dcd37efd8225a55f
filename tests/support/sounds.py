"""Sounds for tests: a few tones that rise and fall, and noise."""

from __future__ import annotations

import io
import wave

import av
import numpy as np
import numpy.typing as npt
from av.audio.stream import AudioStream

RATE = 16_000
Floats = npt.NDArray[np.float32]
KINDS = {
    "flac": ("flac", "flac", "s16"),
    "mp3": ("mp3", "libmp3lame", "fltp"),
    "ogg": ("ogg", "libopus", "flt"),
    "webm": ("webm", "libopus", "flt"),
    "m4a": ("mp4", "aac", "fltp"),
    "aac": ("adts", "aac", "fltp"),
}
"""FFmpeg's names of the format, the codec and the samples of each kind of file."""


def sound(seconds: float, seed: int = 0) -> Floats:
    random = np.random.default_rng(seed)
    times = np.arange(int(seconds * RATE)) / RATE
    tones = sum(
        random.uniform(0.05, 0.2)
        * np.sin(2 * np.pi * times * random.uniform(80, 6000))
        * np.sin(times * random.uniform(1, 9))
        for _ in range(6)
    )
    noise = random.normal(0, 0.01, len(times))
    return np.asarray(tones + noise, np.float32)


def wav(samples: Floats, rate: int = RATE) -> bytes:
    """Return a WAV file of 16 bits."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(rate)
        writer.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())
    return file.getvalue()


def encoded(samples: Floats, kind: str, rate: int = 48_000, channels: int = 1) -> bytes:
    """Return a file of another kind, written with PyAV; the samples are of one channel."""
    form, codec, layout = KINDS[kind]
    file = io.BytesIO()
    names = {1: "mono", 2: "stereo"}
    with av.open(file, "w", format=form) as container:
        stream = container.add_stream(codec, rate=rate)
        assert isinstance(stream, AudioStream)
        stream.layout, stream.format = names[channels], layout
        planes = np.ascontiguousarray(np.repeat(samples[None], channels, axis=0))
        frame = av.AudioFrame.from_ndarray(planes, format="fltp", layout=names[channels])
        frame.sample_rate = rate
        resampler = av.AudioResampler(layout, names[channels], rate)
        for each in (*resampler.resample(frame), *resampler.resample(None)):
            container.mux(stream.encode(each))
        container.mux(stream.encode())
    return file.getvalue()


def babble(seconds: float, seed: int = 0, loudness: float = 0.1) -> Floats:
    """Return what is as loud as speech is: noise that rises and falls four times a second."""
    random = np.random.default_rng(seed)
    times = np.arange(int(seconds * RATE)) / RATE
    syllables = np.abs(np.sin(2 * np.pi * 2 * times)) ** 2
    return np.asarray(random.normal(0, loudness, len(times)) * syllables, np.float32)


def pause(seconds: float, seed: int = 0, loudness: float = 0.001) -> Floats:
    """Return a quiet noise."""
    random = np.random.default_rng(seed)
    return random.normal(0, loudness, int(seconds * RATE)).astype(np.float32)
