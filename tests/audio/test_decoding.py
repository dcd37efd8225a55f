"""Sound files: every format gives the same sound, and damaged or excessive files are refused."""

from __future__ import annotations

import importlib.util
import struct
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fork_server import FORK_SERVER
from support.sounds import KINDS, RATE, Floats, encoded, sound, wav
from support.videos import scene, video

from tampu.audio import is_audio
from tampu.audio.compressed import decode_compressed
from tampu.audio.formats import AudioLimits
from tampu.audio.resampling import resample
from tampu.audio.sandboxed import SandboxedAudioDecoder
from tampu.audio.wav import decode_wav
from tampu.errors import RequestError
from tampu.vision.video import is_video

_TYPES = {"u1": (1, 8), "<i2": (1, 16), "<i4": (1, 32), "<f4": (3, 32), "<f8": (3, 64)}


def riff(head: bytes, content: bytes, *, size: int | None = None) -> bytes:
    """Return a WAV file; its data has another size than it says if one is given."""
    said = len(content) if size is None else size
    chunks = [b"LIST\x03\0\0\0abc\0", b"fmt " + struct.pack("<I", len(head)) + head]
    body = b"WAVE" + b"".join(chunks) + b"data" + struct.pack("<I", said) + content
    return b"RIFF" + struct.pack("<I", len(body)) + body


def head(kind: int, bits: int, channels: int = 1, rate: int = RATE) -> bytes:
    width = bits // 8 * channels
    return struct.pack("<HHIIHH", kind, channels, rate, rate * width, width, bits)


def as_type(samples: Floats, name: str) -> bytes:
    if name == "u1":
        return (samples * 127 + 128).round().astype("u1").tobytes()
    scale = 1.0 if "f" in name else 2.0 ** (8 * int(name[-1]) - 1) - 1
    return (samples.astype(np.float64) * scale).astype(name).tobytes()


@pytest.mark.parametrize("name", list(_TYPES))
def test_a_wav_file_may_have_any_width(name: str) -> None:
    samples = sound(0.3).clip(-0.9, 0.9)
    found = decode_wav(riff(head(*_TYPES[name]), as_type(samples, name)))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, samples, atol=2 / 2 ** (7 if name == "u1" else 15))


def test_a_wav_file_of_24_bits_and_the_extensible_form() -> None:
    samples = sound(0.1).clip(-0.9, 0.9)
    whole = (samples * 2**23).astype("<i4").tobytes()
    content = b"".join(whole[at : at + 3] for at in range(0, len(whole), 4))
    extensible = head(0xFFFE, 24) + struct.pack("<HHIH", 22, 24, 4, 1) + bytes(14)
    np.testing.assert_allclose(decode_wav(riff(extensible, content)), samples, atol=2 / 2**23)


def test_channels_are_mixed_and_other_rates_are_resampled() -> None:
    left, right = (sound(0.3, seed) for seed in (1, 2))
    mean: Floats = (left + right) / np.float32(2)
    both = np.stack([left, right], axis=1).astype("<f4").tobytes()
    found = decode_wav(riff(head(3, 32, channels=2, rate=44_100), both))
    np.testing.assert_allclose(found, resample(mean, 44_100), atol=1e-6)


@pytest.mark.parametrize("size", [0, 0xFFFFFFFF, 0x7FFFFFFF])
def test_a_wav_file_from_a_pipe_ends_with_the_file(size: int) -> None:
    samples = sound(0.1)
    found = decode_wav(riff(head(3, 32), samples.tobytes(), size=size))
    np.testing.assert_array_equal(found, samples.clip(-1, 1))


def test_silence_is_a_sound() -> None:
    assert not decode_wav(wav(np.zeros(800, np.float32))).any()


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (b"", "the sound is empty"),
        (b"GIF89a", "not a WAV file"),
        (riff(head(1, 16), b""), "the sound is empty"),
        (riff(head(1, 16), bytes(100), size=101), "truncated, it ends too early"),
        (riff(head(1, 16), bytes(100))[:30], "the sound is damaged"),
        (riff(head(1, 12), bytes(100)), "integers of 8, 16, 24 or 32 bits"),
        (riff(head(7, 8), bytes(100)), "integers of 8, 16, 24 or 32 bits"),
        (riff(head(1, 16, channels=0), bytes(100)), "0 channels; 1 to 16"),
        (riff(head(1, 16, rate=4_000_000), bytes(100)), "4000000 samples a second; 1000 to"),
        (riff(head(1, 16, rate=0), bytes(100)), "0 samples a second; 1000 to"),
        (riff(head(3, 32), np.float32("nan").tobytes()), "not numbers"),
        (riff(head(3, 64), np.float64(1e300).tobytes()), "not numbers"),
    ],
)
def test_what_is_wrong_with_a_wav_file_is_said(file: bytes, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        decode_wav(file)


@given(st.binary(max_size=80), st.integers(0, 60))
def test_any_bytes_are_a_sound_or_refused(noise: bytes, at: int) -> None:
    file = wav(sound(0.01))
    with suppress(RequestError):
        assert np.isfinite(decode_wav(file[:at] + noise + file[at + len(noise) :])).all()


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("kind", list(KINDS))
def test_every_format_gives_the_sound(kind: str, channels: int) -> None:
    """Encoders lose some, and some put silence before: the loudness at each time is compared."""
    times = np.arange(48_000) / 48_000
    samples = (np.sin(2 * np.pi * 500 * times) * (0.1 + 0.8 * (times > 0.5))).astype(np.float32)
    file = encoded(samples, kind, channels=channels)
    assert is_audio(file)
    found = decode_compressed(file)
    assert abs(len(found) - 16_000) < 2500
    quiet, loud = (
        np.sqrt(np.square(found[part]).mean()) for part in (np.s_[4000:6000], np.s_[11_000:14_000])
    )
    assert quiet == pytest.approx(0.1 / 2**0.5, rel=0.1)
    assert loud == pytest.approx(0.9 / 2**0.5, rel=0.1)


def test_flac_loses_nothing() -> None:
    samples = sound(0.5)
    found = decode_compressed(encoded(samples, "flac", rate=RATE))
    np.testing.assert_allclose(found, samples, atol=1 / 2**15)


def test_192_khz_are_resampled() -> None:
    samples = sound(0.5)
    found = decode_compressed(encoded(samples, "flac", rate=192_000))
    np.testing.assert_allclose(found, resample(samples, 192_000), atol=1 / 2**14)


@pytest.mark.parametrize("kind", ["flac", "m4a", "webm"])
def test_a_file_that_ends_too_early_is_refused(kind: str) -> None:
    file = encoded(sound(4.0), kind, rate=RATE)
    with pytest.raises(RequestError, match="damaged or truncated"):
        decode_compressed(file[: len(file) // 2])


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (AudioLimits(size_bytes=100), r"has \d+ bytes, the limit is 100: compress it"),
        (AudioLimits(seconds=0.4), r"or more, the limit is 0: cut it"),
        (AudioLimits(rate=20_000), "48000 samples a second; 1000 to 20000"),
        (AudioLimits(channels=1), "2 channels; 1 to 1"),
    ],
)
@pytest.mark.parametrize("kind", ["flac", "ogg"])
def test_a_sound_over_a_limit_is_refused(kind: str, limits: AudioLimits, message: str) -> None:
    """FLAC states its length; Ogg does not."""
    file = encoded(sound(3.0), kind, channels=2)
    with pytest.raises(RequestError, match=message):
        decode_compressed(file, limits)


def test_a_wav_file_of_ten_hours_is_refused_before_it_is_read() -> None:
    file = riff(head(1, 8, rate=1000), bytes(36_000_000))
    with pytest.raises(RequestError, match="has 36000 seconds or more, the limit is 3600: cut it"):
        decode_wav(file)


def test_other_files_are_refused() -> None:
    with pytest.raises(RequestError, match="supported: WAV, FLAC, MP3, Ogg"):
        decode_compressed(b"GIF89a")
    with pytest.raises(RequestError, match="the file has no sound"):
        decode_compressed(video(scene(4), "mp4"))
    for noise in (b"fLaC", b"OggS" + bytes(200), b"ID3" + bytes(3000), b"\xff\xfb" + bytes(999)):
        with pytest.raises(RequestError, match=r"damaged or truncated|is empty"):
            decode_compressed(noise)


def test_a_video_is_no_sound_and_a_word_in_its_tags_makes_none() -> None:
    file = video(scene(4), "mp4")
    assert is_video(file)
    assert not is_audio(file)
    tagged = encoded(sound(0.2), "m4a", rate=RATE) + b"\0\0\0\x10freevideo..."
    assert is_audio(tagged)


@pytest.fixture
def decoder() -> Iterator[SandboxedAudioDecoder]:
    decoder = SandboxedAudioDecoder(FORK_SERVER)
    yield decoder
    decoder.close()


def test_the_sandbox_gives_the_same_samples(decoder: SandboxedAudioDecoder) -> None:
    samples = sound(0.5)
    np.testing.assert_array_equal(decoder.decode(wav(samples)), decode_wav(wav(samples)))
    for kind in KINDS:
        file = encoded(samples, kind)  # the process has one thread: sums of other order
        np.testing.assert_allclose(decoder.decode(file), decode_compressed(file), atol=1e-6)
    with pytest.raises(RequestError, match="the sound is damaged: its WAV file is truncated"):
        decoder.decode(wav(samples)[:200])
    with pytest.raises(RequestError, match="the sound is damaged"):
        decoder.decode(b"fLaC")
    with pytest.raises(RequestError, match="supported: WAV, FLAC"):
        decoder.decode(b"GIF89a")


def test_without_pyav_wav_is_read_and_the_message_names_the_extra(
    decoder: SandboxedAudioDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert len(decoder.decode(wav(sound(0.1)))) == 1600
    with pytest.raises(RequestError, match=r"pip install 'tampu\[audio\]'"):
        decoder.decode(b"fLaC")
