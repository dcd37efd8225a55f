from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support import llama_samplers
from support import sampling as reference

from tampu.sampling.transforms import (
    cumsum,
    min_p,
    multinomial,
    penalized,
    softmax_weights,
    top_n_sigma,
    top_p,
    typical_p,
    xtc,
)

SHARES = st.floats(0.0, 1.0, exclude_max=True)
LOGITS = arrays.arrays(
    np.float32, st.integers(1, 60), elements=st.floats(-30, 30, width=32, allow_subnormal=False)
)


def weights_of(logits: npt.NDArray[Any], temperature: float = 1.0) -> npt.NDArray[np.float32]:
    values = np.sort(logits)[::-1]
    return softmax_weights(values, values[0], temperature)


@given(LOGITS, st.floats(0.05, 5.0))
def test_weights_are_proportional_to_probabilities(
    logits: npt.NDArray[Any], temperature: float
) -> None:
    weights = weights_of(logits, temperature)
    assert weights[0] == 1.0
    np.testing.assert_allclose(
        weights / weights.sum(dtype=np.float64),
        reference.softmax(np.sort(logits)[::-1], temperature),
        rtol=2e-3,
        atol=1e-9,
    )
    assert abs((weights / weights.sum(dtype=np.float64)).sum() - 1.0) < 1e-6


def test_huge_logits_and_a_tiny_temperature_give_finite_weights() -> None:
    values = np.array([3e38, 1.0, -3e38, -np.inf], np.float32)
    np.testing.assert_array_equal(softmax_weights(values, values[0], 1e-30), [1, 0, 0, 0])


def test_a_temperature_near_zero_leaves_only_the_best() -> None:
    np.testing.assert_array_equal(
        softmax_weights(np.array([2, 1, -4], np.float32), np.float32(2), 0.001), [1, 0, 0]
    )


def test_weights_are_written_to_the_given_array() -> None:
    values = np.array([0, -1], np.float32)
    out = np.empty(2, np.float32)
    assert softmax_weights(values, values[0], 1.0, out=out) is out
    np.testing.assert_array_equal(values, [0, -1])


@pytest.mark.parametrize(
    ("p", "count"), [(0.0, 1), (0.49, 1), (0.5, 2), (0.74, 2), (0.75, 3), (0.99, 4), (1.0, 4)]
)
def test_top_p_keeps_the_token_that_exceeds_the_limit(p: float, count: int) -> None:
    assert top_p(cumsum(np.array([1.0, 0.5, 0.25, 0.25], np.float32)), p) == count


@pytest.mark.parametrize(
    ("p", "count"), [(0.0, 4), (0.1, 4), (0.3, 2), (0.5, 2), (0.51, 1), (1, 1)]
)
def test_min_p_is_relative_to_the_best(p: float, count: int) -> None:
    assert min_p(np.array([1.0, 0.5, 0.25, 0.125], np.float32), p) == count


@given(LOGITS, st.floats(0, 1), st.floats(0, 1))
def test_stricter_filters_keep_subsets(logits: npt.NDArray[Any], one: float, other: float) -> None:
    low, high = sorted((one, other))
    weights = weights_of(logits)
    running = cumsum(weights)
    assert 1 <= top_p(running, low) <= top_p(running, high) <= len(logits)
    assert len(logits) >= min_p(weights, low) >= min_p(weights, high) >= 1
    assert set(typical_p(weights, low)) <= set(typical_p(weights, high))
    assert len(typical_p(weights, low)) >= 1


@given(LOGITS, SHARES)
def test_top_p_equals_a_sum_one_by_one(logits: npt.NDArray[Any], p: float) -> None:
    weights = weights_of(logits)
    assert top_p(cumsum(weights), p) == len(reference.nucleus(weights, p))


def test_typical_p_prefers_tokens_near_the_entropy() -> None:
    # Entropy 1.28: the surprise of 0.2 is 1.61, that of 0.6 is 0.51, that of 0.05 is 3.0.
    weights = np.array([0.6, 0.2, 0.1, 0.05, 0.05], np.float32)
    np.testing.assert_array_equal(typical_p(weights, 0.1), [1])
    np.testing.assert_array_equal(typical_p(weights, 0.5), [0, 1])
    np.testing.assert_array_equal(typical_p(weights, 0.85), [0, 1, 2])


def test_typical_p_leaves_out_impossible_tokens() -> None:
    np.testing.assert_array_equal(typical_p(np.array([1.0, 1.0, 0.0], np.float32), 1.0), [0, 1])


@given(LOGITS, SHARES)
def test_the_sample_is_where_the_cumulative_sum_passes_the_share(
    logits: npt.NDArray[Any], share: float
) -> None:
    weights = weights_of(logits)
    running = cumsum(weights)
    index = multinomial(running, share)
    assert weights[index] > 0
    assert running[index] > share * running[-1]
    assert index == 0 or running[index - 1] <= share * running[-1]


def test_a_weight_of_zero_is_never_sampled() -> None:
    running = cumsum(np.array([0, 1, 0, 2, 0], np.float32))
    assert {multinomial(running, share) for share in np.linspace(0, 1, 100)} == {1, 3}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((2.0, 0.0, 0.0), [2.0, -6.0, 0.0]),
        ((1.0, 0.5, 0.0), [3.5, -3.5, -0.5]),
        ((1.0, 0.0, 0.5), [3.5, -4.5, -1.0]),
        ((2.0, 1.0, 1.0), [0.0, -10.0, -3.0]),
    ],
)
def test_penalties_follow_the_published_formulas(
    options: tuple[float, float, float], expected: list[float]
) -> None:
    repeat, presence, frequency = options
    result = penalized(
        np.array([4, -3, 0], np.float32),
        np.array([1, 3, 2], np.float32),
        repeat=repeat,
        presence=presence,
        frequency=frequency,
    )
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, expected)


@given(LOGITS, st.floats(0.1, 4.0))
def test_top_n_sigma_is_that_of_the_definition_and_of_llama_cpp(
    logits: npt.NDArray[Any], n: float
) -> None:
    kept = logits >= top_n_sigma(logits, n)
    values = logits.astype(np.float64)
    bound = values.max() - n * np.sqrt(((values - values.mean()) ** 2).mean())
    is_clear = np.abs(values - bound) > 1e-4
    np.testing.assert_array_equal(kept[is_clear], (values >= bound)[is_clear])
    with llama_samplers.top_n_sigma(n) as theirs:
        found = theirs.apply(logits) > -np.inf
    if len(logits) > 1:
        np.testing.assert_array_equal(kept[is_clear], found[is_clear])


def test_top_n_sigma_does_not_count_forbidden_tokens() -> None:
    logits = np.array([3, 1, -np.inf, 0], np.float32)
    assert top_n_sigma(logits, 1.0) == pytest.approx(3 - np.std([3, 1, 0]))
    assert top_n_sigma(np.array([-np.inf], np.float32), 1.0) == -np.inf


@given(LOGITS, st.floats(0.01, 0.5))
def test_xtc_equals_that_of_llama_cpp(logits: npt.NDArray[Any], threshold: float) -> None:
    weights = weights_of(logits)
    left_out = xtc(weights, threshold)
    probabilities = weights / weights.sum(dtype=np.float64)
    is_clear = np.abs(probabilities - threshold).min() > 1e-5  # than rounding changes
    assert left_out == max(np.count_nonzero(probabilities >= threshold) - 1, 0) or not is_clear
    with llama_samplers.xtc(1.0, threshold) as theirs:
        found = theirs.apply(np.sort(logits)[::-1])
    if is_clear:
        kept = np.sort(found[found > -np.inf])  # of equals any may be left out
        np.testing.assert_array_equal(kept, np.sort(logits)[: len(logits) - left_out])
