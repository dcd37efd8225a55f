from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support import sampling as reference

from tampu.errors import ComputeError
from tampu.sampling.candidates import Candidates, best_of


def ranked(candidates: Candidates, count: int) -> list[Any]:
    return [candidates.token(rank) for rank in range(min(count, len(candidates.descending)))]


@pytest.mark.parametrize("size", [1, 7, 40, 41, 1000, 1024, 1300, 5120, 5121, 20_000])
@pytest.mark.parametrize("k", [1, 5, 40, 300])
def test_the_k_best_are_those_of_a_full_sort(size: int, k: int) -> None:
    logits = np.random.default_rng(size).normal(0, 3, size).astype(np.float32)
    candidates = best_of(logits, k)
    expected = reference.descending(logits)[:k]
    assert ranked(candidates, k) == expected.tolist()
    np.testing.assert_array_equal(candidates.descending[:k], logits[expected])


@given(
    arrays.arrays(np.float32, st.integers(1, 3000), elements=st.sampled_from([0.0, 1.0, 2.0])),
    st.integers(1, 50),
)
def test_equal_logits_are_ordered_by_token(logits: npt.NDArray[Any], k: int) -> None:
    assert ranked(best_of(logits, k), k) == reference.descending(logits)[:k].tolist()


@pytest.mark.parametrize("size", [50, 1300, 20_001])
def test_the_best_candidates_are_found_at_any_position(size: int) -> None:
    for place in (0, 1, size // 2, size - 2, size - 1):
        logits = np.zeros(size, np.float32)
        logits[place] = 1.0
        assert best_of(logits, 3).token(0) == place


@pytest.mark.parametrize("size", [50, 20_000])
def test_forbidden_tokens_are_not_candidates(size: int) -> None:
    logits = np.full(size, -np.inf, np.float32)
    logits[[3, size - 1]] = [1.0, 2.0]
    candidates = best_of(logits, 40)
    assert ranked(candidates, 40) == [size - 1, 3]


@pytest.mark.parametrize("size", [50, 20_001])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_nonfinite_logit_is_refused_at_any_position(size: int, bad: float) -> None:
    for place in (0, size // 2, size - 1):
        logits = np.zeros(size, np.float32)
        logits[place] = bad
        with pytest.raises(ComputeError, match="unusable"):
            best_of(logits, 5)
