import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support import sampling as reference

from tampu.sampling.full_vocab import FullVocabulary, column_cumsum, multinomial_in_columns


class Scripted:
    """Random numbers from a list, over and over."""

    def __init__(self, shares: list[Any]) -> None:
        self.numbers = itertools.cycle(shares)

    def random(self) -> Any:
        return next(self.numbers)


def best_is_one(parts: npt.NDArray[Any]) -> npt.NDArray[Any]:
    parts[0] = 64
    return (parts / 64).astype(np.float32)


# Parts of 64, so that every sum is exact and ties are many.
WEIGHTS = arrays.arrays(np.int64, st.integers(1, 400), elements=st.integers(0, 64)).map(best_is_one)
SIXTEENTHS = st.integers(0, 16).map(lambda part: part / 16)
SHARES = st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=5)


@given(WEIGHTS, SIXTEENTHS.filter(lambda p: p < 1), SHARES)
def test_top_p_samples_only_from_the_nucleus(
    weights: npt.NDArray[Any], p: float, shares: list[float]
) -> None:
    shares = [*shares, 0.0]  # the best ends any series of refusals
    token = FullVocabulary(len(weights)).sample(weights, p, 0.0, Scripted(shares))
    assert token in reference.nucleus(weights, p)


@given(WEIGHTS, SIXTEENTHS, SIXTEENTHS, SHARES)
def test_both_filters_hold_and_the_weights_stay_as_they_were(
    weights: npt.NDArray[Any], p: float, least: float, shares: list[float]
) -> None:
    before = weights.copy()
    token = FullVocabulary(len(weights)).sample(weights, p, least, Scripted([*shares, 0.0]))
    assert weights[token] >= least
    assert weights[token] > 0
    if p < 1:
        assert token in reference.nucleus(weights, p)
    np.testing.assert_array_equal(weights, before)


@pytest.mark.parametrize("size", [3, 127, 128, 129, 1000])
def test_every_token_is_sampled_by_its_share(size: int) -> None:
    weights = np.random.default_rng(size).uniform(0.1, 1, size).astype(np.float32)
    columns = column_cumsum(weights)
    shares = (np.arange(50_000) + 0.5) / 50_000
    tokens = [multinomial_in_columns(weights, columns, share) for share in shares]
    observed = reference.frequencies(tokens, size)
    np.testing.assert_allclose(observed, weights / weights.sum(), atol=3 / 50_000)


def test_forbidden_tokens_are_never_sampled() -> None:
    weights = np.zeros(1001, np.float32)
    weights[[5, 600, 1000]] = 1.0
    columns = column_cumsum(weights)
    shares = np.linspace(0, 1, 1000)
    sampled = {multinomial_in_columns(weights, columns, share) for share in shares}
    assert sampled == {5, 600, 1000}


@pytest.mark.parametrize(
    ("p", "least"), [(1.0, 0.0), (0.9, 0.0), (0.5, 0.0), (0.05, 0.0), (1.0, 0.3), (0.7, 0.5)]
)
def test_kept_tokens_are_sampled_with_their_probability(p: float, least: float) -> None:
    weights = np.array([1, 0.75, 0.5, 0.5, 0.5, 0.5, 0.25, 0.125, 0.125, 0.0], np.float32)
    kept = weights * (weights >= least)
    if p < 1:
        inside = reference.nucleus(weights, p)
        kept[[token for token in range(len(weights)) if token not in inside]] = 0
    random = np.random.default_rng(7)
    full = FullVocabulary(len(weights))
    tokens = [full.sample(weights, p, least, random) for _ in range(5_000)]
    observed = reference.frequencies(tokens, len(weights))
    assert reference.close(observed, kept / kept.sum(dtype=np.float64), 5_000)


def test_few_rounds_are_needed_for_a_tiny_nucleus() -> None:
    class Counting:
        rounds = 0
        numbers = np.random.default_rng(3)

        def random(self) -> float:
            self.rounds += 1
            return self.numbers.random()

    weights = np.linspace(1.0, 0.5, 50_000, dtype=np.float32)
    random = Counting()
    full = FullVocabulary(len(weights))
    assert max(full.sample(weights, 1e-9, 0.0, random) for _ in range(20)) == 0
    assert random.rounds < 20 * 30
