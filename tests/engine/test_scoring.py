"""Log-probabilities of continuations: those of the logits, whatever is shared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engines import SMALL, rest, tiny_engine
from support.tiny_hybrid import hybrid_weights, tiny_hybrid
from support.tiny_model import write_tiny

from tampu.cancellation import cancellable
from tampu.engine.engine import Engine
from tampu.engine.scoring import Tokens, common_prefix, log_softmax, loglikelihood
from tampu.errors import ComputeError, ContextLengthError, RequestCancelledError, RequestError

PROMPT = (3, 4, 5, 6, 7)
CONTINUATIONS = st.lists(
    st.lists(st.integers(3, 6), min_size=1, max_size=4).map(tuple), min_size=1, max_size=6
)


@pytest.fixture(scope="module", params=["attention", "hybrid"])
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("engine")
    if request.param == "attention":
        with tiny_engine(folder) as engine:
            yield engine
        return
    path = write_tiny(folder / "hybrid.gguf", tiny_hybrid(), weights=hybrid_weights())
    with Engine.load(path, slots=2, **SMALL) as engine:
        engine.generate([3], max_tokens=1)  # its threads are there before the first test begins
        yield engine


def by_logits(engine: Engine, prompt: Sequence[int], continuation: Tokens) -> float:
    """The sum of the log-probabilities, of the logits of the whole text."""
    rows = engine.logits([*prompt, *continuation])[len(prompt) - 1 :]
    return sum(log_softmax(row, [token])[0] for row, token in zip(rows, continuation, strict=False))


@given(continuations=CONTINUATIONS)
@settings(max_examples=25, deadline=None)
def test_scores_are_those_of_the_logits(engine: Engine, continuations: list[Tokens]) -> None:
    [found] = engine.loglikelihood(PROMPT, [(PROMPT, continuations)])
    expected = [by_logits(engine, PROMPT, each) for each in continuations]
    np.testing.assert_allclose(found.logprobs, expected, rtol=1e-4, atol=1e-4)
    rest(engine)


def test_questions_do_not_change_one_another(engine: Engine) -> None:
    prompts = [([*PROMPT, 8 + i], [(3,), (4, 5), (4, 6, 3)]) for i in range(9)]
    together = engine.loglikelihood(PROMPT, prompts)
    for prompt, found in zip(prompts, together, strict=True):
        [alone] = engine.loglikelihood(PROMPT, [prompt])
        np.testing.assert_allclose(found.logprobs, alone.logprobs, rtol=1e-4, atol=1e-4)


def test_what_prompts_have_in_common_is_computed_once(engine: Engine) -> None:
    shared = [9, 8, 7, 6, 5, 4, 3, 9, 8, 7]
    found = engine.loglikelihood(shared, [([*shared, 20 + i], [(3,), (4,)]) for i in range(6)])
    computed = sum(each.usage.prompt_tokens - each.usage.cached_tokens for each in found)
    assert computed <= len(shared) + 6


class Counted:
    """Begins requests of an engine, and counts the tokens and outputs of each."""

    def __init__(self, engine: Engine) -> None:
        self._collect = engine._inputs.collect
        self.requests: list[tuple[int, int | None]] = []

    def __call__(self, prompt: Any, collector: Any, sink: Any) -> Any:
        self.requests.append((len(prompt), collector.last))
        return self._collect(prompt, collector, sink)


@pytest.mark.parametrize(
    ("continuations", "forks"),
    [
        ([(3,), (4,), (5,)], [(5, 1)]),
        ([(3, 4), (3, 5)], [(6, 2)]),
        ([(3, 4), (5, 6)], [(6, 2), (6, 1)]),
        ([(3, 4, 5), (3, 4, 6), (3, 7, 8), (9,)], [(7, 3), (7, 1)]),
        ([(3,), (3, 4)], [(6, 2)]),
    ],
)
def test_each_prefix_has_one_output(
    engine: Engine, continuations: list[Tokens], forks: list[tuple[int, int]]
) -> None:
    counted = Counted(engine)
    loglikelihood([(PROMPT, continuations)], counted, at_once=2)
    assert counted.requests == forks


def test_an_error_ends_the_other_requests(engine: Engine) -> None:
    with pytest.raises(RequestError, match="not in the vocabulary"):
        engine.loglikelihood(PROMPT, [(PROMPT, [(3, 4)]), (PROMPT, [(10**6, 3)])])
    with pytest.raises(ContextLengthError):
        engine.loglikelihood(PROMPT, [(PROMPT, [(3, 4)]), (PROMPT, [tuple([3] * 80)])])
    rest(engine)


def test_a_cancelled_caller_ends_all_requests(engine: Engine) -> None:
    with cancellable(lambda: True), pytest.raises(RequestCancelledError):
        engine.loglikelihood(PROMPT, [(PROMPT, [(3, 4)])])
    rest(engine)


def test_log_softmax_adds_to_one_and_refuses_nan() -> None:
    logits = np.array([1.0, 2.0, -np.inf, 1000.0], np.float32)
    found = log_softmax(logits, [0, 1, 2, 3])
    assert found[2] == -np.inf
    assert sum(np.exp(found)) == pytest.approx(1)
    for wrong in (np.nan, np.inf):
        with pytest.raises(ComputeError):
            log_softmax(np.array([0.0, wrong], np.float32), [0])


@given(first=st.lists(st.integers(0, 2)), second=st.lists(st.integers(0, 2)))
def test_common_prefix_is_the_longest(first: list[int], second: list[int]) -> None:
    count = common_prefix(first, second)
    assert first[:count] == second[:count]
    assert first[: count + 1] != second[: count + 1] or count == min(len(first), len(second))
