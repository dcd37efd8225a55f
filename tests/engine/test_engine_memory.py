"""What is taken at load is all that is ever taken, and many sequences share it."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.engines import GREEDY, rest
from support.tiny_hybrid import hybrid_weights, tiny_hybrid
from support.tiny_model import Tiny, write_tiny

from tampu.engine.engine import Engine
from tampu.runner.events import Done

TEXT = "the cat is on the list and the dog is in the list"


def picture(seed: int, side: int) -> npt.NDArray[Any]:
    return np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)


@pytest.mark.seed("S39", "S40", "S41", "S42")
def test_the_largest_requests_need_no_more_memory_than_loading() -> None:
    with Engine.load("demo", context=512, slots=3, threads=1, batch=64) as engine:
        backend = engine.runner.graphs.backend
        reserved = backend.graph_bytes
        assert reserved > 0
        words = engine.tokenize("one two three four five six seven eight nine ten " * 60)
        engine.generate(words[:510], max_tokens=40, ignore_eos=True)  # the context overflows
        engine.logits(words[:512])
        engine.embed([words[:512], "short"])
        question = [{"role": "user", "content": "What is it?", "images": [picture(i, 300)]}
                    for i in range(3)]  # fmt: skip
        streams = [engine.stream_chat([each], max_tokens=30) for each in question]
        streams += [engine.stream_chat(question, max_tokens=30)]
        for stream in streams:
            list(stream)
        engine.generate(words[:512], max_tokens=1, prompt_logprobs=True)
        assert backend.graph_bytes == reserved
        rest(engine)


@pytest.mark.seed("S62", "S78")
def test_sixty_four_sequences_give_the_same_as_alone(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf")
    source = random.Random(0)
    texts = [" ".join(source.sample(TEXT.split(), source.randrange(1, 8))) for _ in range(64)]
    with Engine.load(path, context=64, slots=64, threads=1) as engine:
        alone = [engine.generate(text, max_tokens=12, **GREEDY).text for text in texts]
        before = engine.runner.stats.steps
        streams = [engine.stream(text, max_tokens=12, **GREEDY) for text in texts]
        together = ["".join(getattr(e, "text", "") for e in stream) for stream in streams]
        steps = engine.runner.stats.steps - before
        assert sum(a == b for a, b in zip(alone, together, strict=True)) >= 62  # sums may differ
        assert steps < 64 * 12 / 8
        rest(engine)


@pytest.mark.seed("S80")
@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gemma3"])
def test_output_continues_after_a_full_context(tmp_path: Path, architecture: str) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", Tiny(architecture=architecture))
    with Engine.load(path, context=32, slots=1, threads=1) as engine:
        found = engine.generate(TEXT, max_tokens=150, truncate=True, **GREEDY)
        assert len(found.tokens) == 150
        assert found.usage.dropped_tokens > 100
        rest(engine)


@pytest.mark.parametrize("cache_type", ["q8_0/f16", "f16/q8_0", "q8_0/q4_0", "f32/f16"])
def test_keys_and_values_may_have_different_types(tmp_path: Path, cache_type: str) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", Tiny(head_dim=32))
    with Engine.load(path, context=64, threads=1) as plain:
        expected = plain.logits(TEXT)
    with Engine.load(path, context=64, threads=1, cache_type=cache_type) as engine:
        found = engine.logits(TEXT)
        limit = 0.2 if "q4_0" in cache_type else 0.05
        assert np.linalg.norm(found - expected) / np.linalg.norm(expected) < limit
        assert len(engine.generate(TEXT, max_tokens=5, **GREEDY).tokens) == 5


@pytest.mark.seed("S2", "S78")
def test_a_common_prefix_is_computed_once(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf")
    with Engine.load(path, context=256, slots=8, threads=1, batch=32) as engine:
        shared = engine.tokenize(TEXT * 3)[:100]
        before = engine.runner.stats.tokens
        streams = [engine.stream([*shared, 300 + i], max_tokens=1, **GREEDY) for i in range(8)]
        ends = [list(stream)[-1] for stream in streams]
        dones = [end for end in ends if isinstance(end, Done)]
        computed = engine.runner.stats.tokens - before
        assert computed <= len(shared) + 8 + 32  # the first batch may have begun with one of them
        assert sum(done.usage.cached_tokens for done in dones) >= 7 * 100 - 32
        again = engine.generate([*shared, 300], max_tokens=1, **GREEDY)
        assert again.usage.cached_tokens == len(shared)


@pytest.mark.parametrize("state_cache", [26_000, 10**6])  # nine states, and many
def test_a_hybrid_resumes_near_the_place_where_a_conversation_branches(
    tmp_path: Path, state_cache: int
) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", tiny_hybrid(), weights=hybrid_weights())
    source = random.Random(1)
    options: dict[str, Any] = {"context": 4096, "threads": 1, "state_cache": state_cache}
    prompt = [source.randrange(5, 100) for _ in range(1500)]
    with Engine.load(path, **options) as engine:
        answer = engine.generate(prompt, max_tokens=600, **GREEDY).tokens
        assert len(answer) == 600
        tokens = prompt + answer
        for before_end in (50, 200, 350):
            branch = [*tokens[:-before_end], 7, 8, 9]
            found = engine.generate(branch, max_tokens=4, **GREEDY)
            again = len(tokens) - before_end - found.usage.cached_tokens
            assert 0 <= again < 512
    with Engine.load(path, **options) as other:
        assert found.tokens == other.generate(branch, max_tokens=4, **GREEDY).tokens


def test_equal_prompts_are_computed_once(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf")
    with Engine.load(path, context=256, slots=4, threads=1) as engine:
        prompt = engine.tokenize(TEXT)
        engine.generate("a", max_tokens=1)
        before = engine.runner.stats.tokens
        streams = [
            engine.stream(prompt, max_tokens=4, temperature=2.0, seed=seed, ignore_eos=True)
            for seed in range(4)
        ]
        texts = ["".join(getattr(e, "text", "") for e in stream) for stream in streams]
        computed = engine.runner.stats.tokens - before
        assert len(set(texts)) > 1
        assert computed <= len(prompt) + 4 * 4 + 4
