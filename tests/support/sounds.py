"""Sounds for tests: a few tones that rise and fall, and noise."""

from __future__ import annotations

import io
import wave

import numpy as np
import numpy.typing as npt

RATE = 16_000


def sound(seconds: float, seed: int = 0) -> npt.NDArray[np.float32]:
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


def wav(samples: npt.NDArray[np.float32], rate: int = RATE) -> bytes:
    """Return a WAV file of 16 bits."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(rate)
        writer.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())
    return file.getvalue()
