"""Log-probabilities of continuations: those of the logits, whatever is shared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
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
from tampu.engine.scoring import Tokens, common_prefix, log_softmax, scores
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


@given(continuations=CONTINUATIONS)
@settings(max_examples=25, deadline=None)
def test_each_token_of_a_score_is_that_of_the_logits(
    engine: Engine, continuations: list[Tokens]
) -> None:
    for found, given_tokens in zip(engine.score(PROMPT, continuations), continuations, strict=True):
        assert found.tokens == given_tokens
        rows = engine.logits([*PROMPT, *given_tokens])[len(PROMPT) - 1 :]
        expected = [log_softmax(r, [t])[0] for r, t in zip(rows, found.tokens, strict=False)]
        np.testing.assert_allclose(found.logprobs, expected, rtol=1e-4, atol=1e-4)
        assert found.logprob == sum(found.logprobs)
    rest(engine)


@pytest.mark.parametrize("prompt", ["the cat", "the cat ", "the cat \n", "", " ", "the ca"])
@pytest.mark.parametrize("text", ["is", " is", "t is on", "\n", "on the list"])
def test_a_text_is_scored_as_the_model_reads_both(engine: Engine, prompt: str, text: str) -> None:
    [found] = engine.score(prompt, [text])
    start = engine.tokenize(prompt.rstrip())
    whole = engine.tokenize(prompt + text)
    if whole[: len(start)] == start:
        assert [*start, *found.tokens] == whole
    shown = engine.detokenize([*start, *found.tokens])
    assert shown == prompt + text
    assert found.logprob == pytest.approx(by_logits(engine, start, found.tokens), abs=1e-3)


def test_texts_and_tokens_are_scored_together_without_a_begin_token(engine: Engine) -> None:
    ids = tuple(engine.tokenize(" is", add_special=False))
    text, tokens, after_tokens = [
        *engine.score("the cat", [" is", ids]),
        *engine.score(engine.tokenize("the cat"), [" is"]),
    ]
    assert engine.tokenizer.bos not in text.tokens
    assert text.tokens == after_tokens.tokens
    assert text.logprob == pytest.approx(after_tokens.logprob, abs=1e-4)
    assert tokens.tokens == ids
    assert engine.score("the cat", []) == []


def test_the_entropy_of_a_token_is_that_of_the_logits(engine: Engine) -> None:
    done = engine.generate(PROMPT, max_tokens=4, logprobs=1, entropy=True, ignore_eos=True)
    rows = engine.logits([*PROMPT, *done.tokens])[len(PROMPT) - 1 : -1].astype(np.float64)
    logprobs = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
    expected = -(np.exp(logprobs) * logprobs).sum(axis=1)
    np.testing.assert_allclose([each.entropy for each in done.logprobs], expected, rtol=1e-3)
    assert engine.generate(PROMPT, max_tokens=1, logprobs=True).logprobs[0].entropy is None
    with pytest.raises(RequestError, match="entropy needs logprobs"):
        engine.generate(PROMPT, max_tokens=1, entropy=True)


@pytest.mark.parametrize("continuations", [[(3,)], [(3, 4)], [(3, 4), (5, 6, 7)]])
def test_an_empty_prompt_is_refused_however_often(
    engine: Engine, continuations: list[Tokens]
) -> None:
    for _ in range(3):
        with pytest.raises(RequestError, match="the prompt is empty"):
            engine.score([], continuations)
        with pytest.raises(RequestError, match="the prompt is empty"):
            engine.loglikelihood([3], [([], continuations)])
    rest(engine)


def test_outputs_before_the_first_token_are_refused(engine: Engine) -> None:
    for last in (0, 2):
        with pytest.raises(RequestError, match=f"{last} outputs of 1 tokens"):
            engine.inputs.rows([3], wants_logits=True, last=last)
    rest(engine)


@pytest.mark.parametrize("tokens", [[320], [-1], [3, 320], [320, 3]])
def test_a_token_that_does_not_exist_ends_its_request_alone(
    engine: Engine, tokens: list[int]
) -> None:
    with pytest.raises(RequestError, match="not in the vocabulary"):
        engine.score(PROMPT, [tokens])
    assert engine.score(PROMPT, [[3]])
    rest(engine)


@pytest.mark.parametrize("tokens", [[], [3]])
def test_each_kind_of_request_ends_with_one_token_or_none(
    engine: Engine, tokens: list[int], tmp_path: Path
) -> None:
    asked: list[Callable[[], Any]] = [
        lambda: engine.generate(tokens, max_tokens=0),
        lambda: engine.generate(tokens, max_tokens=1, prompt_logprobs=True),
        lambda: engine.logits(tokens),
        lambda: engine.logits(tokens, chunk=1),
        lambda: engine.embed([tokens]),
        lambda: engine.embed([tokens], late_chunking=True),
        lambda: engine.score(tokens, [[3], [4, 5]]),
        lambda: engine.loglikelihood(tokens, [(tokens, [(3,), (4, 5)])]),
        lambda: engine.snapshot(tokens, tmp_path / "rows"),
    ]
    for ask in asked:
        for _ in range(2):
            with suppress(RequestError) if tokens else pytest.raises(RequestError, match="empty"):
                ask()
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
        self._collect = engine.inputs.collect
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
    scores([(PROMPT, continuations)], counted, at_once=2)
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
