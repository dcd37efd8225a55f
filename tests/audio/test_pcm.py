"""Samples without a head: 16 bits, and G.711's laws, equal to FFmpeg's decoders."""

from __future__ import annotations

import av
import numpy as np
import pytest
from support.sounds import sound

from tampu.audio.pcm import Encoding, decode_pcm, rate_of
from tampu.audio.wav import decode_wav, wav_file
from tampu.errors import RequestError


def test_pcm_is_16_bits_little_endian() -> None:
    given = np.array([0, 1, -1, 32767, -32768], "<i2")
    assert decode_pcm(given.tobytes(), "audio/pcm").tolist() == (given / 32768).tolist()
    assert decode_pcm(b"", "audio/pcm").size == 0


@pytest.mark.parametrize(
    ("encoding", "codec"), [("audio/pcmu", "pcm_mulaw"), ("audio/pcma", "pcm_alaw")]
)
def test_every_byte_of_g711_is_as_in_ffmpeg(encoding: Encoding, codec: str) -> None:
    every = bytes(range(256))
    decoder = av.CodecContext.create(codec, "r")
    assert isinstance(decoder, av.AudioCodecContext)
    decoder.sample_rate, decoder.layout = 8000, "mono"
    frames = [frame.to_ndarray().ravel() for frame in decoder.decode(av.Packet(every))]
    expected = np.concatenate(frames).astype(np.float32) / np.float32(32768)
    assert decode_pcm(every, encoding).tolist() == expected.tolist()
    assert rate_of(encoding) == 8000


def test_half_a_sample_is_an_error() -> None:
    with pytest.raises(RequestError, match="audio has 3 bytes, but a sample of audio/pcm has two"):
        decode_pcm(b"abc", "audio/pcm")


def test_a_written_wav_file_is_read_again() -> None:
    samples = sound(0.3)
    assert np.abs(decode_wav(wav_file(samples)) - samples).max() < 1 / 16384
    loud = decode_wav(wav_file(np.array([2.0, -2.0], np.float32)))
    assert np.abs(loud).max() == pytest.approx(1, abs=1e-4)
