"""The engine at its edges: full contexts, logits and embeddings, what is refused, the end."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.engines import GREEDY, PROMPT, SMALL, rest, tiny_engine
from support.scripted import write_scripted
from support.tiny_model import BOS, VOCABULARY, write_tiny

from tampu.engine.engine import Engine
from tampu.errors import ContextLengthError, RequestError, RunnerDiedError
from tampu.ml.library import gg


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with tiny_engine(tmp_path_factory.mktemp("engine")) as engine:
        yield engine


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Load an engine of the test's own."""
    made = []

    def load(*, stated: int | None = None, **options: Any) -> Engine:
        path = write_tiny(tmp_path / "own.gguf", pooling=stated)
        made.append(Engine.load(path, **{**SMALL, **options}))
        return made[-1]

    yield load
    for each in made:
        each.close()


# The context


@pytest.mark.seed("S80")
def test_output_continues_past_the_context_length(engine: Engine) -> None:
    found = engine.generate(PROMPT, max_tokens=200, **GREEDY)
    assert len(found.tokens) == 200
    assert found.usage.dropped_tokens > 100
    rest(engine)


def test_without_shifting_a_full_context_ends_the_answer(engine: Engine) -> None:
    found = engine.generate(PROMPT, shift=False, **GREEDY)
    assert found.reason == "length"
    assert len(engine.tokenize(PROMPT)) + len(found.tokens) == engine.context + 1


def test_output_that_repeats_one_token_ends_at_the_limit(tmp_path: Path) -> None:
    looper = write_scripted(tmp_path / "m.gguf", ["Well", " la"], repeats=1)
    with Engine.load(looper, threads=1, context=128) as engine:
        found = engine.generate("x", max_tokens=100, max_repeated_tokens=30, **GREEDY)
        assert (found.text, found.reason) == ("Well" + " la" * 31, "length")
        assert found.usage.generated_tokens == 32
        assert len(engine.generate("x", max_tokens=100, **GREEDY).tokens) == 100
        with pytest.raises(RequestError, match="max_repeated_tokens must be 1 or more"):
            engine.generate("x", max_repeated_tokens=0)


@pytest.mark.parametrize("options", [{}, {"max_tokens": None}, {"max_tokens": -1}])
def test_an_answer_without_a_limit_ends_after_ten_contexts(
    load: Callable[..., Any], options: dict[str, Any]
) -> None:
    engine = load(context=8)
    done = engine.generate([1, 2, 3], ignore_eos=True, **options)
    assert (done.reason, len(done.tokens)) == ("length", 80)


def test_a_limit_of_the_caller_may_be_longer(load: Callable[..., Any]) -> None:
    engine = load(context=8)
    assert len(engine.generate([1, 2, 3], ignore_eos=True, max_tokens=90).tokens) == 90


def test_alternating_tokens_do_not_count_as_repeats(tmp_path: Path) -> None:
    endless = write_scripted(tmp_path / "m.gguf", [" la", " li"], repeats=2)
    with Engine.load(endless, threads=1, context=128) as engine:
        found = engine.generate("x", max_tokens=100, max_repeated_tokens=1, **GREEDY)
        assert found.usage.generated_tokens == 100


def test_a_prompt_that_fills_the_context_is_answered(engine: Engine) -> None:
    prompt = [BOS, *[290] * 63]
    assert len(engine.generate(prompt, max_tokens=3, **GREEDY).tokens) == 3


def test_a_prompt_longer_than_the_context_is_refused_with_the_numbers(engine: Engine) -> None:
    for ask in (engine.generate, engine.logits):
        with pytest.raises(ContextLengthError, match="prompt is too long: 65 tokens > 64 maximum"):
            ask([BOS] * 65)


def test_a_prompt_longer_than_the_context_is_truncated_if_allowed(engine: Engine) -> None:
    prompt = [BOS, *[290] * 50, *[280] * 30]
    found = engine.generate(prompt, truncate=True, keep=2, max_tokens=2, **GREEDY)
    assert found.usage.prompt_tokens == 64
    assert found.usage.dropped_tokens >= 81 - 64
    cut = [BOS, 290, *prompt[-62:]]
    assert found.tokens[0] == engine.logits(cut)[-1].argmax()


@pytest.mark.seed("S39", "S40")
def test_nothing_is_allocated_after_loading(
    load: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load(slots=2)
    backend = engine.model.graphs.backend
    reserved = backend.graph_bytes
    asked = []
    real = gg.ggml_backend_buft_alloc_buffer
    monkeypatch.setattr(
        gg,
        "ggml_backend_buft_alloc_buffer",
        lambda kind, size: (asked.append(size), real(kind, size))[1],
    )
    for prompt in ([BOS] * 64, PROMPT, [BOS, 300]):
        engine.generate(prompt, max_tokens=70, **GREEDY)
    threads = [
        threading.Thread(target=engine.generate, args=(text,), kwargs={"max_tokens": 40, **GREEDY})
        for text in (PROMPT, "he is", "on the list of it")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    engine.logits([BOS] * 64)
    engine.embed(PROMPT)
    assert backend.graph_bytes == reserved
    assert asked == []


# Logits and embeddings


@pytest.mark.parametrize("chunk", [0, -1])
def test_a_chunk_below_one_is_refused(engine: Engine, chunk: int) -> None:
    with pytest.raises(RequestError, match=f"chunk must be 1 or more, not {chunk}"):
        engine.logits(PROMPT, chunk=chunk)


def test_a_text_model_refuses_an_image_in_logits(engine: Engine) -> None:
    with pytest.raises(RequestError, match=r"tiny\.gguf takes no images"):
        engine.logits(PROMPT, images=[b"cat"])


def test_embeddings_have_length_one_and_differ_between_texts(engine: Engine) -> None:
    found = engine.embed([PROMPT, "he is", PROMPT])
    assert found.shape == (3, 32)
    assert found.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(found[0], found[2], atol=1e-6)
    assert found[0] @ found[1] < 0.99
    assert np.array_equal(engine.embed(PROMPT), engine.embed([PROMPT]))


def test_texts_that_are_embedded_together_share_steps(engine: Engine) -> None:
    texts = [f"he is {number} of the list" for number in range(40)]
    alone = [engine.embed(each) for each in texts]
    engine.runner.observe()
    found = engine.embed(texts)
    assert max(len(step.parts) for step in engine.runner.observe().steps) > 1
    np.testing.assert_allclose(found, np.concatenate(alone), atol=1e-5)


def test_embedding_no_texts_gives_an_empty_array(engine: Engine) -> None:
    assert engine.embed([]).shape == (0, 32)


def test_pooling_is_that_of_the_file(load: Callable[..., Any]) -> None:
    found = {}
    for pooling in (None, 1, 2, 3):
        engine = load(stated=pooling)
        found[pooling] = engine.embed(PROMPT)[0]
        hidden = engine.inputs.rows(PROMPT, wants_logits=False)
        pooled = {2: hidden[0], 3: hidden[-1]}.get(pooling, hidden.mean(0))
        np.testing.assert_allclose(found[pooling], pooled / np.linalg.norm(pooled), atol=1e-5)
        engine.close()
    assert np.array_equal(found[None], found[1])
    assert found[2] @ found[3] < 0.99


def test_another_pooling_may_be_chosen(load: Callable[..., Any]) -> None:
    for number, pooling in enumerate(("mean", "cls", "last"), 1):
        found = []
        for options in ({"stated": number}, {"stated": 0, "pooling": pooling}):
            engine = load(**options)
            found.append(engine.embed(PROMPT))
            engine.close()
        assert np.array_equal(*found)


def test_an_unknown_pooling_is_refused(load: Callable[..., Any]) -> None:
    with pytest.raises(RequestError, match="pooling must be one of none, mean, cls, last, not max"):
        load(pooling="max")


def test_an_unknown_kind_of_speculation_is_refused(load: Callable[..., Any]) -> None:
    with pytest.raises(RequestError, match=r"spec_type must be one of auto, none, .*, not mtp"):
        load(spec_type="mtp")


def test_without_pooling_each_token_has_its_hidden_state(load: Callable[..., Any]) -> None:
    for options in ({"stated": 0}, {"stated": 1, "pooling": "none"}):
        engine = load(**options)
        hidden = [engine.inputs.rows(text, wants_logits=False) for text in (PROMPT, "a")]
        found = engine.embed([PROMPT, "a"])
        np.testing.assert_allclose(found, np.concatenate(hidden), rtol=1e-4, atol=1e-5)
        engine.close()


# What is refused


@pytest.mark.parametrize("prompt", [[], np.array([], np.int32)])
def test_an_empty_prompt_is_refused(engine: Engine, prompt: Any) -> None:
    for ask in (engine.generate, engine.stream, engine.logits):
        with pytest.raises(RequestError, match="the prompt is empty"):
            ask(prompt)


@pytest.mark.parametrize("token", [-1, VOCABULARY, 10**12])
def test_a_token_outside_the_vocabulary_is_refused(engine: Engine, token: int) -> None:
    for ask in (engine.generate, engine.logits):
        with pytest.raises(RequestError, match=f"token {token} is not in the vocabulary of 320"):
            ask([BOS, token])


def test_an_unknown_option_is_refused_with_the_one_that_it_resembles(engine: Engine) -> None:
    with pytest.raises(RequestError, match=r"'temprature': did you mean temperature\?"):
        engine.generate(PROMPT, temprature=0.5)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"max_tokens": 2**60}, "max_tokens must be an integer from 0 to"),
        ({"max_tokens": "10"}, "max_tokens"),
        ({"keep": -2}, "keep must be an integer from -1 to"),
        ({"top_logprobs": 21}, "top_logprobs must be 0 to 20, not 21"),
        ({"stop": [""]}, "stop strings must not be empty"),
        ({"stop": "end"}, "stop"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": 2.0}, "top_p"),
        ({"logit_bias": {VOCABULARY: 1.0}}, "logit_bias"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias"),
        ({"seed": "x"}, "seed"),
    ],
)
def test_options_out_of_range_are_refused_by_name(
    engine: Engine, options: dict[str, Any], reason: str
) -> None:
    for ask in (engine.generate, engine.stream):
        with pytest.raises(RequestError, match=reason):
            ask(PROMPT, **options)


@pytest.mark.parametrize("value", [1, 0.5, True])
def test_integers_are_accepted_for_floats(engine: Engine, value: float) -> None:
    assert engine.generate(PROMPT, max_tokens=1, min_p=0, temperature=float(value)).tokens


# The end


def test_closing_ends_running_requests(load: Callable[..., Any]) -> None:
    engine = load()
    stream = engine.stream(PROMPT, **GREEDY)
    next(stream)
    waiting = engine.stream("he is", **GREEDY)
    engine.close()
    for each in (stream, waiting):
        with pytest.raises(RunnerDiedError, match="the runner has ended: it was closed"):
            list(each)


def test_a_closed_engine_refuses_everything(load: Callable[..., Any]) -> None:
    engine = load()
    engine.close()
    engine.close()
    for ask in (engine.generate, engine.stream, engine.logits, engine.embed):
        with pytest.raises(RunnerDiedError, match="it was closed"):
            ask(PROMPT)
    assert engine.tokenize("the") == [BOS, 259, 286, 264]


_FORKED = """
import os, sys
from tampu import Engine, TampuError
with Engine.load(sys.argv[1], context=32, threads=1, batch=16) as engine:
    engine.generate("a", max_tokens=1)
    if os.fork() == 0:
        for ask in (engine.generate, engine.logits, engine.embed):
            try:
                ask("a")
            except TampuError as error:
                os.write(1, f"{error}\\n".encode())
        os._exit(0)
    os.wait()
    os.write(1, str(len(engine.generate("a", max_tokens=2, ignore_eos=True).tokens)).encode())
"""


def test_an_engine_of_the_process_before_a_fork_is_refused_and_does_not_hang(
    tmp_path: Path,
) -> None:
    path = write_tiny(tmp_path / "tiny.gguf")
    command = [sys.executable, "-W", "ignore", "-c", _FORKED, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    *of_child, of_parent = done.stdout.splitlines()
    assert len(of_child) == 3
    assert all("loaded before this process was forked" in line for line in of_child)
    assert of_parent == "2"
