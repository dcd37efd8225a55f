"""Divergence, agreement and perplexity against SciPy-free definitions in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tampu.errors import ComputeError
from tampu.evaluation.statistics import Divergence, Estimate, Positions


def drawn(seed: int, rows: int, size: int = 50) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    source = np.random.default_rng(seed)
    a, b = source.normal(0, 4, (2, rows, size)).astype(np.float32)
    return source.integers(0, size, rows).astype(np.int32), a, b


@given(st.integers(0, 1000), st.integers(1, 40))
def test_positions_follow_the_definitions(seed: int, rows: int) -> None:
    tokens, a, b = drawn(seed, rows)
    found = Positions.of(tokens, a, b)
    for at, token in enumerate(tokens):
        p, q = (np.exp(x[at].astype(np.float64)) for x in (a, b))
        p, q = p / p.sum(), q / q.sum()
        assert found.kl[at] == pytest.approx((p * np.log(p / q)).sum(), rel=1e-9)
        assert found.logprobs_a[at] == pytest.approx(math.log(p[token]))
        assert found.logprobs_b[at] == pytest.approx(math.log(q[token]))
        assert found.same_best[at] == (p.argmax() == q.argmax())


@given(st.integers(0, 1000), st.floats(-50, 50, width=32))
def test_equal_distributions_diverge_by_nothing(seed: int, shift: float) -> None:
    tokens, a, _ = drawn(seed, 20)
    found = Positions.of(tokens, a, a)
    assert not found.kl.any()
    assert found.same_best.all()
    assert Positions.of(tokens, a, a + np.float32(shift)).kl.max() < 1e-9


def test_perplexity_and_its_error_are_those_of_llama_cpp() -> None:
    losses = np.array([0.5, 1.0, 3.0, 1.5])
    found = Estimate.perplexity(-losses)
    assert found.value == pytest.approx(math.exp(losses.mean()))
    variance = (losses**2).mean() - losses.mean() ** 2
    assert found.error == pytest.approx(found.value * math.sqrt(variance / 3))
    assert Estimate.perplexity(np.array([-2.0])).error == 0


def test_divergences_are_summarized() -> None:
    found = Divergence.of(np.arange(101) / 100)
    assert (found.mean.value, found.median, found.percentile_99, found.maximum) == pytest.approx(
        (0.5, 0.5, 0.99, 1.0)
    )


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_numbers_are_an_error(bad: float) -> None:
    tokens, a, b = drawn(1, 3)
    b[1, 2] = bad
    with pytest.raises(ComputeError, match="NaN or infinite"):
        Positions.of(tokens, a, b)
