"""Sampling under a mask is sampling from the logits of what the mask allows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import sampling as reference

from tampu.errors import ComputeError
from tampu.sampling import Sampler, SamplingOptions
from tampu.sampling.candidates import best_of, few_tokens, filtered, is_allowed, masked

SIZE = 20_000
OPTIONS = st.sampled_from([
    {"temperature": 0.0}, {}, {"top_k": 5}, {"top_k": 0}, {"top_k": 0, "top_p": 1.0},
    {"top_k": 0, "min_p": 0.1}, {"typical_p": 0.5}, {"repeat_penalty": 1.3},
    {"top_k": 0, "top_p": 1.0, "min_p": 0.2}, {"logit_bias": {3: 5.0, 4: -3.0}},
])  # fmt: skip


def mask_of(tokens: Iterable[int], size: int = SIZE) -> npt.NDArray[Any]:
    bits = np.zeros(-(-size // 32) * 32, np.uint8)
    bits[list(tokens)] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)


def only(logits: npt.NDArray[np.float32], tokens: list[int]) -> npt.NDArray[np.float32]:
    left = np.full_like(logits, -np.inf)
    left[tokens] = logits[tokens]
    return left


@given(OPTIONS, st.integers(0, 2**32), st.sampled_from([1, 3, 200, 9_000, SIZE - 50]))
def test_a_mask_gives_the_same_token_as_masked_logits(
    options: dict[str, Any], seed: int, count: Any
) -> None:
    random = np.random.default_rng(seed)
    logits = random.normal(0, 3, SIZE).astype(np.float32)
    tokens = random.choice(SIZE, count, replace=False)
    if options.get("top_k") == 0 and few_tokens(mask_of(tokens)) is not None:
        return  # drawn another way; its distribution is tested below
    samplers = [Sampler(SamplingOptions(seed=1, **options), SIZE) for _ in range(2)]
    for _ in range(3):
        token = samplers[0].sample(logits, mask_of(tokens))
        assert token == samplers[1].sample(only(logits, tokens))
        assert token in tokens


@pytest.mark.parametrize("options", [{"top_k": 0}, {"top_k": 0, "min_p": 0.1, "top_p": 1.0}])
def test_a_mask_of_few_tokens_keeps_their_distribution(
    options: dict[str, Any],
) -> None:
    logits = np.linspace(-2, 2, 50, dtype=np.float32)
    tokens = [3, 31, 32, 40, 49]
    sampler = Sampler(SamplingOptions(seed=1, temperature=1.0, **options), 50)
    plain = Sampler(SamplingOptions(seed=2, temperature=1.0, **options), 50)
    drawn = [sampler.sample(logits, mask_of(tokens, 50)) for _ in range(4_000)]
    expected = [plain.sample(only(logits, tokens)) for _ in range(4_000)]
    observed, wanted = (reference.frequencies(found, 50) for found in (drawn, expected))
    assert np.abs(observed - wanted).max() < 0.05


@given(st.sets(st.integers(0, 99)))
def test_masks_are_read_bit_by_bit(tokens: set[Any]) -> None:
    mask = mask_of(tokens, 100)
    assert set(few_tokens(mask).tolist()) == tokens
    assert [is_allowed(mask, token) for token in range(100)] == [t in tokens for t in range(100)]
    logits = np.arange(100, dtype=np.float32)
    assert (masked(logits, mask, np.empty(100, np.float32)) > -np.inf).sum() == len(tokens)
    kept = filtered(best_of(logits, 100), mask)
    assert set(kept.tokens.tolist()) == tokens
    assert kept.descending.tolist() == sorted(tokens, reverse=True)


def test_a_mask_of_many_tokens_is_not_listed() -> None:
    assert few_tokens(mask_of(range(SIZE))) is None


@pytest.mark.parametrize("count", [1, 15_000])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nonfinite_logits_of_allowed_tokens_are_an_error(
    count: int, temperature: float, value: float
) -> None:
    logits = np.zeros(SIZE, np.float32)
    logits[:count] = value
    sampler = Sampler(SamplingOptions(temperature=temperature), SIZE)
    with pytest.raises(ComputeError, match="unusable"):
        sampler.sample(logits, mask_of(range(count)))


def test_a_mask_that_allows_nothing_is_an_error() -> None:
    sampler = Sampler(SamplingOptions(), SIZE)
    with pytest.raises(ComputeError, match="forbidden"):
        sampler.sample(np.zeros(SIZE, np.float32), mask_of([]))
