"""Adapters that requests choose: loaded, unloaded and kept apart while the engine runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.engines import GREEDY, rest
from support.tiny_adapter import write_tiny_adapter
from support.tiny_model import Tiny, write_tiny

from tampu.engine.engine import Engine
from tampu.engine.questions import Predicate
from tampu.errors import (
    ComputeError,
    ModelFileError,
    OutOfMemoryError,
    RequestError,
    TampuError,
    UnsupportedModelError,
)
from tampu.runner.graph_cache import GraphCache

PROMPT = "the cat is on the list and the"
SHORT: dict[str, Any] = GREEDY | {"max_tokens": 12}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "model.gguf")


@pytest.fixture
def engine(path: Path) -> Iterator[Engine]:
    with Engine.load(path, context=128, slots=4, threads=1, batch=32) as engine:
        yield engine


@pytest.fixture
def one(path: Path, tmp_path: Path) -> Path:
    return write_tiny_adapter(tmp_path / "one.gguf", path, seed=1)


@pytest.fixture
def two(path: Path, tmp_path: Path) -> Path:
    return write_tiny_adapter(tmp_path / "two.gguf", path, seed=2, rank=2)


def answer(engine: Engine, lora: dict[str, float], prompt: str = PROMPT) -> list[int]:
    return engine.generate(prompt, lora=lora, **SHORT).tokens


def test_a_chosen_adapter_changes_its_request_only(engine: Engine, one: Path) -> None:
    plain = answer(engine, {})
    engine.adapters.load("one", one)
    assert engine.adapters.names == ("one",)
    assert answer(engine, {}) == plain
    assert answer(engine, {"one": 1.0}) != plain
    assert answer(engine, {"one": 0.0}) == plain


def test_a_chosen_adapter_gives_the_answer_of_one_loaded_with_the_model(
    engine: Engine, path: Path, one: Path, two: Path
) -> None:
    engine.adapters.load("one", one)
    engine.adapters.load("two", two)
    given = ((one, 0.5), (two, 1.0))
    with Engine.load(path, context=128, threads=1, adapters=given) as own:
        assert answer(engine, {"one": 0.5, "two": 1.0}) == answer(own, {})
    with Engine.load(path, context=128, threads=1, adapters=given[:1]) as own:
        own.adapters.load("two", two)
        assert answer(own, {"two": 1.0}) == answer(engine, {"one": 0.5, "two": 1.0})


def test_requests_with_different_adapters_run_together(
    engine: Engine, one: Path, two: Path
) -> None:
    choices: list[dict[str, float]] = [{}, {"one": 1.0}, {"two": 1.0}, {"one": -0.5, "two": 2.0}]
    engine.adapters.load("one", one)
    engine.adapters.load("two", two)
    alone = [answer(engine, chosen) for chosen in choices]
    assert len({tuple(each) for each in alone}) == len(choices)
    streams = [engine.stream(f"{PROMPT} cat", lora=chosen, **SHORT) for chosen in choices]
    for stream in streams:
        assert list(stream)
    streams = [engine.stream(PROMPT, lora=chosen, **SHORT) for chosen in choices]
    found = [[token for event in s for token in getattr(event, "tokens", ())] for s in streams]
    assert found == alone


def test_rows_are_shared_by_requests_with_the_same_adapters_only(
    engine: Engine, one: Path, two: Path
) -> None:
    engine.adapters.load("one", one)
    engine.adapters.load("two", two)
    length = len(engine.tokenize(PROMPT))

    def cached(lora: dict[str, float]) -> int:
        return engine.generate(PROMPT, lora=lora, **SHORT).usage.cached_tokens

    for chosen in ({}, {"one": 1.0}, {"one": 0.5}, {"two": 1.0}, {"one": 1.0, "two": 1.0}):
        assert (cached(chosen), cached(chosen)) == (0, length - 1), chosen
    assert cached({"two": 1.0, "one": 1.0}) == length - 1
    engine.adapters.unload("one")
    engine.adapters.load("one", two)  # another adapter of the same name
    assert cached({"one": 1.0}) == 0
    rest(engine)


def test_rows_with_adapters_and_without_are_kept_apart(
    path: Path, one: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    options: dict[str, Any] = {"context": 512, "threads": 1, "prefix_cache": (kept, 10**9)}
    prompt = PROMPT * 12
    with Engine.load(path, **options) as engine:
        engine.adapters.load("one", one)
        changed = answer(engine, {"one": 1.0}, prompt)
    assert [*kept.rglob("*.rows")] != []
    with Engine.load(path, **options) as engine:
        found = engine.generate(prompt, lora={}, **SHORT)
        plain = found.tokens
        assert found.usage.cached_tokens == 0
    with Engine.load(path, **options) as engine:
        engine.adapters.load("one", one)
        found = engine.generate(prompt, lora={"one": 1.0}, **SHORT)
        assert found.tokens == changed
        assert found.usage.cached_tokens > 100
        found = engine.generate(prompt, lora={}, **SHORT)
        assert found.tokens == plain
        assert found.usage.cached_tokens > 100


def test_a_running_request_keeps_an_adapter_that_is_unloaded(
    engine: Engine, one: Path, two: Path
) -> None:
    engine.adapters.load("two", two)
    engine.adapters.load("one", one)
    many = SHORT | {"max_tokens": 60}
    expected = engine.generate(PROMPT, lora={"one": 1.0}, **many).tokens
    stream = engine.stream(PROMPT, lora={"one": 1.0}, **many)
    tokens = [*getattr(next(stream), "tokens", ())]
    engine.adapters.unload("two")
    engine.adapters.unload("one")
    with pytest.raises(RequestError, match="no adapter 'one' is loaded"):
        answer(engine, {"one": 1.0})
    tokens += [token for event in stream for token in getattr(event, "tokens", ())]
    assert tokens == expected
    assert engine.adapters.names == ()


def test_an_adapter_that_does_not_fit_into_memory_changes_nothing(
    engine: Engine, one: Path, two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.adapters.load("one", one)
    expected = answer(engine, {"one": 1.0})

    def refuse(*_: object) -> None:
        raise OutOfMemoryError("no memory for a graph")

    with monkeypatch.context() as patched:
        patched.setattr(GraphCache, "reserve", refuse)
        with pytest.raises(OutOfMemoryError):
            engine.adapters.load("two", two)
    assert engine.adapters.names == ("one",)
    assert answer(engine, {"one": 1.0}) == expected
    engine.adapters.load("two", two)
    assert answer(engine, {"one": 1.0}) == expected


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"type": "model"}, ModelFileError, "is not an adapter"),
        ({"kind": "dora"}, UnsupportedModelError, "only adapters of the type lora"),
        ({"architecture": "qwen2"}, ModelFileError, "is an adapter for qwen2, the model is llama"),
        ({"size": 1e6}, ModelFileError, "do not fit into F16"),
        ({"extra": "blk.0.attn_norm.weight.lora_a"}, UnsupportedModelError, "not a projection"),
        ({"extra": "output.weight"}, UnsupportedModelError, "not part of a low-rank adapter"),
        ({"extra": "output.weight.lora_a"}, ModelFileError, "lora_b.*missing"),
    ],
)
def test_files_that_are_no_adapter_of_the_model_are_refused(
    engine: Engine,
    path: Path,
    tmp_path: Path,
    changes: dict[str, Any],
    kind: type[TampuError],
    message: str,
) -> None:
    wrong = write_tiny_adapter(tmp_path / "wrong.gguf", path, **changes)
    with pytest.raises(kind, match=message):
        engine.adapters.load("wrong", wrong)
    assert engine.adapters.names == ()


def test_an_adapter_of_a_model_of_another_size_is_refused(engine: Engine, tmp_path: Path) -> None:
    other = write_tiny(tmp_path / "other.gguf", Tiny(embedding=64))
    wrong = write_tiny_adapter(tmp_path / "wrong.gguf", other)
    with pytest.raises(ModelFileError, match=r"do not fit blk\.0\..* of shape"):
        engine.adapters.load("wrong", wrong)


def test_names_and_strengths_that_cannot_be_are_refused(engine: Engine, one: Path) -> None:
    engine.adapters.load("one", one)
    with pytest.raises(RequestError, match="'one' is loaded already"):
        engine.adapters.load("one", one)
    with pytest.raises(RequestError, match="needs a name"):
        engine.adapters.load("", one)
    with pytest.raises(RequestError, match=r"no adapter 'two' is loaded \(loaded: 'one'\)"):
        engine.adapters.unload("two")
    for wrong in (float("nan"), float("inf"), 1e39, 101.0, -101.0):
        with pytest.raises(RequestError, match="lora: the strength of 'one' must be -100 to 100"):
            answer(engine, {"one": wrong})
    with pytest.raises(ComputeError, match=r"adapters of the request \(lora\) may be too strong"):
        answer(engine, {"one": 100.0})  # these weights are large
    with pytest.raises(RequestError, match="may choose 8 adapters, not 9"):
        answer(engine, {str(number): 1.0 for number in range(9)})
    with pytest.raises(RequestError, match="lora"):
        engine.generate(PROMPT, lora="one")


def test_embeddings_are_of_the_chosen_adapter(engine: Engine, path: Path, one: Path) -> None:
    plain = engine.embed([PROMPT])
    engine.adapters.load("one", one)
    chosen = engine.embed([PROMPT], lora={"one": 0.5})
    np.testing.assert_array_equal(engine.embed([PROMPT]), plain)
    with Engine.load(path, context=128, threads=1, adapters=((one, 0.5),)) as own:
        np.testing.assert_allclose(chosen, own.embed([PROMPT]), atol=2e-3)
        late = own.embed([PROMPT, PROMPT], late_chunking=True)
    assert np.abs(chosen - plain).max() > 2e-2
    ours = engine.embed([PROMPT, PROMPT], late_chunking=True, lora={"one": 0.5})
    np.testing.assert_allclose(ours, late, atol=2e-3)


def test_decisions_and_ranks_are_of_the_chosen_adapter(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    base = write_tiny(tmp_path / "asked.gguf", template=template)
    adapter = write_tiny_adapter(tmp_path / "one.gguf", base, seed=1)
    asked = (PROMPT, [Predicate("the cat?"), Predicate("the list?")])

    def answers(engine: Engine, lora: dict[str, float]) -> list[float]:
        decided = engine.decide(*asked, lora=lora).answers
        found = [decision.probabilities[0] for decision in decided]
        return [*found, *engine.rerank("the cat", ["the list", "and"], lora=lora)]

    loading: dict[str, Any] = {"context": 512, "slots": 2, "threads": 1, "cache_type": "f32"}
    with Engine.load(base, **loading) as engine:
        plain = answers(engine, {})
        engine.adapters.load("one", adapter)
        chosen = answers(engine, {"one": 1.0})
        assert answers(engine, {}) == pytest.approx(plain, rel=1e-4)
    with Engine.load(base, **loading, adapters=((adapter, 1.0),)) as own:
        assert answers(own, {}) == pytest.approx(chosen, rel=2e-2)
    assert chosen != pytest.approx(plain, rel=0.1)


def test_an_adapter_that_is_not_loaded_is_refused_by_all(engine: Engine) -> None:
    for ask in (
        lambda lora: engine.embed(["a"], lora=lora),
        lambda lora: engine.loglikelihood([1], [([1, 2], [(3,)])], lora),
    ):
        with pytest.raises(RequestError, match="no adapter 'x' is loaded"):
            ask({"x": 1.0})
