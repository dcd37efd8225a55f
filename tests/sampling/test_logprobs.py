import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support import sampling as reference

from tampu.errors import ComputeError
from tampu.sampling import top_logprobs
from tampu.sampling.logprobs import entropy


def test_two_equal_logits_have_probability_one_half() -> None:
    logprob, listed = top_logprobs(np.array([3, 3], np.float32), 1, 2)
    assert logprob == pytest.approx(math.log(0.5), abs=1e-6)
    assert [token for token, _ in listed] == [0, 1]


@given(
    arrays.arrays(np.float32, st.integers(1, 300), elements=st.floats(-50, 50, width=32)),
    st.integers(0, 20),
    st.data(),
)
def test_log_probabilities_are_those_of_softmax(
    logits: npt.NDArray[Any], count: int, data: st.DataObject
) -> None:
    token = data.draw(st.integers(0, len(logits) - 1))
    logprob, listed = top_logprobs(logits, token, count)
    expected = np.log(np.maximum(reference.softmax(logits), 1e-300))
    assert logprob == pytest.approx(expected[token], abs=1e-4)
    best = reference.descending(logits)[:count].tolist()
    assert [id_ for id_, _ in listed] == best
    np.testing.assert_allclose([value for _, value in listed], expected[best], atol=1e-4)


def test_probabilities_of_the_whole_vocabulary_sum_to_one() -> None:
    logits = np.random.default_rng(0).normal(0, 5, 20).astype(np.float32)
    _, listed = top_logprobs(logits, 0, 20)
    assert sum(math.exp(value) for _, value in listed) == pytest.approx(1.0, abs=1e-6)


def test_huge_logits_do_not_overflow() -> None:
    logprob, _ = top_logprobs(np.array([1e30, 1e30, -1e30], np.float32), 0, 1)
    assert logprob == pytest.approx(math.log(0.5), abs=1e-6)


def test_the_chosen_token_need_not_be_listed() -> None:
    logprob, listed = top_logprobs(np.array([1, 5, 4], np.float32), 0, 2)
    assert [token for token, _ in listed] == [1, 2]
    assert logprob < listed[-1][1]


def test_a_forbidden_token_has_no_probability() -> None:
    assert top_logprobs(np.array([0, -np.inf], np.float32), 1, 0) == (-math.inf, [])


def test_nan_is_refused() -> None:
    with pytest.raises(ComputeError):
        top_logprobs(np.array([0, np.nan], np.float32), 0, 1)


@given(logits=arrays.arrays(np.float32, st.integers(1, 300), elements=st.floats(-50, 50, width=32)))
def test_entropy_is_that_of_all_tokens(logits: npt.NDArray[np.float32]) -> None:
    probabilities = np.exp(logits.astype(np.float64) - logits.max())
    probabilities /= probabilities.sum()
    expected = -sum(p * math.log(p) for p in probabilities.tolist() if p > 0)
    assert entropy(logits) == pytest.approx(expected, abs=1e-6)


def test_entropy_of_equal_and_of_forbidden_tokens() -> None:
    assert entropy(np.zeros(1024, np.float32)) == pytest.approx(10 * math.log(2))
    assert entropy(np.array([0, -np.inf, -np.inf], np.float32)) == 0.0
