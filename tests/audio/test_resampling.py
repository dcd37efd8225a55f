"""Resampling: tones keep their height, strength and place; what 16 kHz cannot hold is removed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sounds import Floats, sound

from tampu.audio.resampling import Resampler, resample

_RATES = [8000, 11_025, 22_050, 24_000, 32_000, 44_100, 48_000, 96_000, 192_000]
_MARGIN = 400  # samples at the ends, where silence before and after is heard


def tone(hertz: float, rate: int, seconds: float = 0.5) -> Floats:
    times = np.arange(int(seconds * rate)) / rate
    return np.sin(2 * np.pi * hertz * times).astype(np.float32)


@pytest.mark.parametrize("rate", _RATES)
@pytest.mark.parametrize("hertz", [100, 3000, 7000])
def test_a_tone_stays_the_same(rate: int, hertz: float) -> None:
    if hertz >= rate / 2:
        hertz = 1000
    found = resample(tone(hertz, rate), rate)
    assert found.dtype == np.float32
    assert len(found) == 8000
    expected = tone(hertz, 16_000)
    inside = slice(_MARGIN, -_MARGIN)
    np.testing.assert_allclose(found[: len(expected)][inside], expected[inside], atol=5e-5)


@pytest.mark.parametrize("rate", [rate for rate in _RATES if rate > 16_000])
@pytest.mark.parametrize("hertz", [8000, 9000, 10_900])
def test_what_is_too_high_is_removed_by_80_db(rate: int, hertz: float) -> None:
    found = resample(tone(hertz, rate), rate)
    assert np.abs(found[_MARGIN:-_MARGIN]).max() < 1e-4


@given(st.sampled_from([8000, 16_000, 16_001, 44_100, 48_000]), st.data())
def test_parts_give_what_the_whole_gives(rate: int, data: st.DataObject) -> None:
    whole = sound(0.2)[: data.draw(st.integers(0, 3200))]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    resampler = Resampler(rate)
    parts = [resampler.push(part) for part in np.split(whole, cuts)]
    found = np.concatenate([*parts, resampler.finish()])
    np.testing.assert_allclose(found, resample(whole, rate), atol=1e-6)
