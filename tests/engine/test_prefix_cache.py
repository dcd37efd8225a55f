"""Rows kept on disk and in memory: another process, or a later request, has the same logits."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.engines import GREEDY, rest
from support.tiny_adapter import write_tiny_adapter
from support.tiny_gemma4 import gemma4_weights, tiny_gemma4
from support.tiny_hybrid import hybrid_weights, tiny_hybrid
from support.tiny_model import Tiny, write_tiny
from support.waiting import wait_until

from tampu.engine.completion import ChatCompletion, Completion
from tampu.engine.engine import Engine
from tampu.runner.kv_offload import KVOffload

pytestmark = pytest.mark.slow

OPTIONS: dict[str, Any] = {"context": 1024, "threads": 1, "batch": 64}


def dense(path: Path) -> Path:
    return write_tiny(path)


def wide(path: Path) -> Path:
    return write_tiny(path, Tiny(head_dim=32))


def windowed(path: Path) -> Path:
    return write_tiny(path, tiny_gemma4(), weights=gemma4_weights())


def hybrid(path: Path) -> Path:
    return write_tiny(path, tiny_hybrid(), weights=hybrid_weights())


def words(count: int, seed: int = 0) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(8, 60) for _ in range(count)]


def answer(engine: Engine, prompt: list[int], count: int = 6) -> Completion:
    return engine.generate(prompt, max_tokens=count, logprobs=True, top_logprobs=20, **GREEDY)


@pytest.mark.parametrize(
    ("make", "options"),
    [
        pytest.param(dense, {}, id="dense"),
        pytest.param(wide, {"cache_type": "q8_0"}, id="dense, q8_0"),
        pytest.param(dense, {"flash_attention": False}, id="dense, transposed values"),
        pytest.param(windowed, {}, id="window"),
        pytest.param(hybrid, {}, id="hybrid"),
    ],
)
def test_another_process_continues_with_the_same_logits(
    tmp_path: Path, make: Callable[[Path], Path], options: dict[str, Any]
) -> None:
    path = make(tmp_path / "model.gguf")
    values = OPTIONS | options | {"prefix_cache": (tmp_path / "kept", 10**9)}
    prompt = words(600)
    with Engine.load(path, **OPTIONS, **options) as engine:
        first = answer(engine, prompt)
        following = [*prompt, *first.tokens, *words(20, seed=1)]
        expected = answer(engine, following)
    with Engine.load(path, **values) as engine:
        assert answer(engine, prompt).logprobs == first.logprobs
        rest(engine)
    with Engine.load(path, **values) as engine:
        found = answer(engine, following)
        rest(engine)
    assert expected.usage.cached_tokens >= len(prompt)
    assert found.usage.cached_tokens == expected.usage.cached_tokens
    assert (found.tokens, found.logprobs) == (expected.tokens, expected.logprobs)


@pytest.mark.parametrize("make", [dense, hybrid])
def test_the_same_prompt_again_is_read_but_for_its_last_token(
    tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    path = make(tmp_path / "model.gguf")
    values = OPTIONS | {"prefix_cache": (tmp_path / "kept", 10**9)}
    prompt = words(600)
    for cached in (0, 599):
        with Engine.load(path, **values) as engine:
            assert answer(engine, prompt).usage.cached_tokens == cached


def test_rows_with_adapters_are_kept_for_the_same_adapters_and_strengths(tmp_path: Path) -> None:
    path = dense(tmp_path / "model.gguf")
    one, two = (write_tiny_adapter(tmp_path / f"{seed}.gguf", path, seed=seed) for seed in (1, 2))
    values = OPTIONS | {"prefix_cache": (tmp_path / "kept", 10**9)}
    prompt = words(600)

    def said(engine: Engine, lora: dict[str, float]) -> tuple[list[float], int]:
        found = engine.generate(prompt, max_tokens=6, logprobs=True, lora=lora, **GREEDY)
        rest(engine)
        return [each.logprob for each in found.logprobs or ()], found.usage.cached_tokens

    with Engine.load(path, **values) as engine:
        engine.adapters.load("two", two)
        engine.adapters.load("one", one)
        first, cached = said(engine, {"one": 0.5})
        assert cached == 0
    with Engine.load(path, **values) as engine:
        engine.adapters.load("first", one)  # of another name, and with another number
        engine.adapters.load("second", two)
        others: list[dict[str, float]] = [
            {}, {"second": 0.5}, {"first": 1.0}, {"first": 0.5, "second": 1.0}
        ]  # fmt: skip
        assert [said(engine, lora)[1] for lora in others] == [0, 0, 0, 0]
        found, cached = said(engine, {"first": 0.5})
    assert cached == 599
    # Other cells are read in another order, so sums differ by rounding.
    assert found == pytest.approx(first, abs=1e-4)


def test_rows_of_another_model_or_another_type_are_not_read(tmp_path: Path) -> None:
    kept: dict[str, Any] = {"prefix_cache": (tmp_path / "kept", 10**9)}
    first, second = (
        write_tiny(tmp_path / f"{seed}.gguf", Tiny(head_dim=32, seed=seed)) for seed in (0, 1)
    )
    prompt = words(300)
    with Engine.load(first, **OPTIONS, **kept) as engine:
        answer(engine, prompt)
    changes: list[tuple[Path, dict[str, Any]]] = [
        (second, {}),
        (first, {"cache_type": "q8_0"}),
        (first, {"kernels": "off"}),
    ]
    for path, others in changes:
        with Engine.load(path, **OPTIONS, **others, **kept) as engine:
            assert answer(engine, prompt).usage.cached_tokens == 0
    with Engine.load(first, **OPTIONS, **kept) as engine:
        assert answer(engine, prompt).usage.cached_tokens == 299


def test_a_damaged_file_is_dropped_with_one_line_and_its_tokens_are_computed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = dense(tmp_path / "model.gguf")
    values = OPTIONS | {"prefix_cache": (tmp_path / "kept", 10**9)}
    prompt = words(600)
    with Engine.load(path, **values) as engine:
        expected = answer(engine, prompt)
    blocks = sorted((tmp_path / "kept").rglob("*.rows"), key=lambda each: each.stat().st_mtime_ns)
    second = blocks[-2]  # the first block was used last
    content = bytearray(second.read_bytes())
    content[-1] ^= 1
    second.write_bytes(content)
    with caplog.at_level(logging.WARNING), Engine.load(path, **values) as engine:
        found = answer(engine, prompt)
        rest(engine)
    assert found.usage.cached_tokens == 256
    assert found.tokens == expected.tokens
    lines = [each.message for each in caplog.records if "prefix cache" in each.message]
    assert len(lines) == 1
    assert second.name in lines[0]


def test_files_are_private_and_the_bound_holds(tmp_path: Path) -> None:
    path, kept = dense(tmp_path / "model.gguf"), tmp_path / "kept"
    limit = 400_000
    with Engine.load(path, **OPTIONS, prefix_cache=(kept, limit)) as engine:
        for seed in range(4):
            answer(engine, words(600, seed))
    files = [each for each in kept.rglob("*") if each.is_file()]
    folders = [kept, *(each for each in kept.rglob("*") if each.is_dir())]
    assert 0 < sum(each.stat().st_size for each in files) <= limit
    assert {each.stat().st_mode & 0o777 for each in files} == {0o600}
    assert {each.stat().st_mode & 0o777 for each in folders} == {0o700}


def test_streams_continue_while_rows_are_read(tmp_path: Path) -> None:
    path = dense(tmp_path / "model.gguf")
    values = OPTIONS | {"prefix_cache": (tmp_path / "kept", 10**9), "slots": 2}
    prompt = words(600)
    with Engine.load(path, **values) as engine:
        answer(engine, prompt)
    with Engine.load(path, **values) as engine:
        beside = engine.stream(words(20, seed=5), max_tokens=100, **GREEDY)
        assert answer(engine, prompt).usage.cached_tokens == 599
        assert list(beside)
        rest(engine)


def wait_until_stored(engine: Engine) -> None:
    """Wait until all sequences that ended are stored."""
    offload = engine.model.scheduler.connector
    assert isinstance(offload, KVOffload)
    wait_until(lambda: offload.is_idle, "all sequences are stored")


@pytest.mark.parametrize("make", [dense, windowed, hybrid])
def test_a_prompt_whose_cells_were_needed_is_read_from_memory(
    tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    path, prompt = make(tmp_path / "model.gguf"), words(600)
    following = [*prompt, 8]
    others = [words(900, seed=each) for each in (1, 2, 3)]
    with Engine.load(path, **OPTIONS) as engine:
        answer(engine, prompt)
        expected = answer(engine, following)
        for each in others:
            answer(engine, each, 1)
        assert answer(engine, following).usage.cached_tokens == 0
    with Engine.load(path, **OPTIONS, prefix_cache_memory=10**8) as engine:
        answer(engine, prompt)
        for each in others:
            wait_until_stored(engine)
            answer(engine, each, 1)
        wait_until_stored(engine)
        found = answer(engine, following)
    assert found.usage.cached_tokens >= len(prompt) - 1
    assert found.tokens == expected.tokens
    # Other cells are read in another order, so sums differ by rounding.
    values = ([each.logprob for each in of.logprobs or ()] for of in (found, expected))
    assert next(values) == pytest.approx(next(values), abs=2e-4)


def picture(color: tuple[int, int, int]) -> npt.NDArray[np.uint8]:
    pixels = np.full((64, 64, 3), 255, np.uint8)
    pixels[5:25, 5:25] = color
    return pixels


def describe(engine: Engine, colors: Sequence[tuple[int, int, int]]) -> ChatCompletion:
    images = [picture(color) for color in colors]
    messages = [{"role": "user", "content": "What color is the shape?", "images": images}]
    return engine.chat(messages, max_tokens=8, temperature=0.0)


def test_images_are_read_back_by_their_contents_and_not_encoded_again(tmp_path: Path) -> None:
    values: dict[str, Any] = {"context": 1024, "threads": 1}
    values |= {"prefix_cache": (tmp_path / "kept", 10**9)}
    colors = [(220, 20, 20), (30, 60, 220)] * 4
    with Engine.load("demo", **values) as engine:
        first = describe(engine, colors)
    with Engine.load("demo", **values) as engine:
        found = describe(engine, colors)
        steps = engine.runner.stats.steps
        other = describe(engine, [*colors[:6], (20, 160, 40), colors[7]])
    assert found.text == first.text
    assert found.usage.cached_tokens == first.usage.prompt_tokens - 1
    assert steps == found.usage.generated_tokens  # and none that encoded an image
    assert 128 < other.usage.cached_tokens < found.usage.cached_tokens  # up to the other image
