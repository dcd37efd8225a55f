"""Spectrograms equal those of transformers' feature extractors."""

from __future__ import annotations

import numpy as np
import pytest
from support.sounds import sound
from transformers import Gemma4AudioFeatureExtractor, WhisperFeatureExtractor

from tampu.audio import gemma_log_mel, whisper_log_mel

_SECONDS = [0.05, 1.0, 3.137, 31.0]


@pytest.mark.parametrize("seconds", _SECONDS)
@pytest.mark.parametrize("bins", [80, 128])
@pytest.mark.parametrize("loudness", [1.0, 1e-4, 0.0])
def test_whispers_spectrogram(seconds: float, bins: int, loudness: float) -> None:
    samples = sound(seconds) * np.float32(loudness)
    extractor = WhisperFeatureExtractor(feature_size=bins)
    expected = extractor._np_extract_fbank_features(samples[None], "cpu")[0].T
    ours = whisper_log_mel(samples, bins)
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, expected, atol=1e-5)


@pytest.mark.parametrize("seconds", _SECONDS[:3])
@pytest.mark.parametrize("loudness", [1.0, 1e-4, 0.0])
def test_gemma_4s_spectrogram(seconds: float, loudness: float) -> None:
    samples = sound(seconds) * np.float32(loudness)
    theirs = Gemma4AudioFeatureExtractor()([samples])
    mask = np.asarray(theirs["input_features_mask"][0])
    expected = np.asarray(theirs["input_features"][0])[mask]
    np.testing.assert_allclose(gemma_log_mel(samples), expected, atol=1e-5)
