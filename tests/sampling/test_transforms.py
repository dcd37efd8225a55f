import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support import sampling as reference

from tampu.sampling.transforms import (
    drawn,
    min_p,
    penalized,
    running_total,
    top_p,
    typical_p,
    weigh,
)

SHARES = st.floats(0.0, 1.0, exclude_max=True)
LOGITS = arrays.arrays(
    np.float32, st.integers(1, 60), elements=st.floats(-30, 30, width=32, allow_subnormal=False)
)


def weights_of(logits, temperature=1.0):
    values = np.sort(logits)[::-1]
    return weigh(values, values[0], temperature)


@given(LOGITS, st.floats(0.05, 5.0))
def test_weights_are_probabilities_but_for_a_factor(logits, temperature):
    weights = weights_of(logits, temperature)
    assert weights[0] == 1.0
    np.testing.assert_allclose(
        weights / weights.sum(dtype=np.float64),
        reference.softmax(np.sort(logits)[::-1], temperature),
        rtol=2e-3,
        atol=1e-9,
    )
    assert abs((weights / weights.sum(dtype=np.float64)).sum() - 1.0) < 1e-6


def test_huge_logits_and_a_tiny_temperature_give_weights():
    values = np.array([3e38, 1.0, -3e38, -np.inf], np.float32)
    np.testing.assert_array_equal(weigh(values, values[0], 1e-30), [1, 0, 0, 0])


def test_an_almost_cold_temperature_leaves_only_the_best():
    np.testing.assert_array_equal(weigh(np.float32([2, 1, -4]), np.float32(2), 0.001), [1, 0, 0])


def test_weights_go_where_the_caller_says():
    values = np.float32([0, -1])
    out = np.empty(2, np.float32)
    assert weigh(values, values[0], 1.0, out=out) is out
    np.testing.assert_array_equal(values, [0, -1])


@pytest.mark.parametrize(
    ("p", "count"), [(0.0, 1), (0.49, 1), (0.5, 2), (0.74, 2), (0.75, 3), (0.99, 4), (1.0, 4)]
)
def test_top_p_keeps_the_token_that_goes_beyond(p, count):
    assert top_p(running_total(np.float32([1.0, 0.5, 0.25, 0.25])), p) == count


@pytest.mark.parametrize(
    ("p", "count"), [(0.0, 4), (0.1, 4), (0.3, 2), (0.5, 2), (0.51, 1), (1, 1)]
)
def test_min_p_is_relative_to_the_best(p, count):
    assert min_p(np.float32([1.0, 0.5, 0.25, 0.125]), p) == count


@given(LOGITS, st.floats(0, 1), st.floats(0, 1))
def test_the_filters_nest(logits, one, other):
    low, high = sorted((one, other))
    weights = weights_of(logits)
    running = running_total(weights)
    assert 1 <= top_p(running, low) <= top_p(running, high) <= len(logits)
    assert len(logits) >= min_p(weights, low) >= min_p(weights, high) >= 1
    assert set(typical_p(weights, low)) <= set(typical_p(weights, high))
    assert len(typical_p(weights, low)) >= 1


@given(LOGITS, SHARES)
def test_top_p_equals_adding_up_one_by_one(logits, p):
    weights = weights_of(logits)
    assert top_p(running_total(weights), p) == len(reference.nucleus(weights, p))


def test_typical_p_prefers_the_surprise_that_is_expected():
    # Entropy 1.28: the surprise of 0.2 is 1.61, that of 0.6 is 0.51, that of 0.05 is 3.0.
    weights = np.float32([0.6, 0.2, 0.1, 0.05, 0.05])
    np.testing.assert_array_equal(typical_p(weights, 0.1), [1])
    np.testing.assert_array_equal(typical_p(weights, 0.5), [0, 1])
    np.testing.assert_array_equal(typical_p(weights, 0.85), [0, 1, 2])


def test_typical_p_leaves_out_what_cannot_come():
    np.testing.assert_array_equal(typical_p(np.float32([1.0, 1.0, 0.0]), 1.0), [0, 1])


@given(LOGITS, SHARES)
def test_what_is_drawn_is_where_the_running_total_passes_the_share(logits, share):
    weights = weights_of(logits)
    running = running_total(weights)
    index = drawn(running, share)
    assert weights[index] > 0
    assert running[index] > share * running[-1]
    assert index == 0 or running[index - 1] <= share * running[-1]


def test_a_weight_of_zero_is_never_drawn():
    running = running_total(np.float32([0, 1, 0, 2, 0]))
    assert {drawn(running, share) for share in np.linspace(0, 1, 100)} == {1, 3}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((2.0, 0.0, 0.0), [2.0, -6.0, 0.0]),
        ((1.0, 0.5, 0.0), [3.5, -3.5, -0.5]),
        ((1.0, 0.0, 0.5), [3.5, -4.5, -1.0]),
        ((2.0, 1.0, 1.0), [0.0, -10.0, -3.0]),
    ],
)
def test_penalties_follow_the_published_formulas(options, expected):
    repeat, presence, frequency = options
    result = penalized(
        np.float32([4, -3, 0]),
        np.float32([1, 3, 2]),
        repeat=repeat,
        presence=presence,
        frequency=frequency,
    )
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, expected)
