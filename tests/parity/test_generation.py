"""Greedy continuations equal those of Hugging Face transformers: alone, together, after reuse."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from support.checkpoints import DECODERS, HYBRIDS, RECIPES
from support.laboratory import Laboratory, in_depth, tokens

from tampu.engine.engine import Engine

pytestmark = pytest.mark.parity

NAMES = list(DECODERS)
TYPICAL = [
    "llama_rope_llama3", "mistral_window", "mistral3", "qwen2", "qwen3", "mixtral", "qwen2moe",
    "qwen3moe", "gptoss", *HYBRIDS, "llama4_text", "gemma2", "gemma3_text", "gemma4",
    "gemma4_small", "gemma4_mixture", "mllama", "qwen25vl", "qwen3vl", "qwen3vlmoe",
]  # fmt: skip
COUNT = 16
LENGTHS = [3, 90, 17, 48]


def continued(engine: Engine, prompt: list[int]) -> list[int]:
    completion = engine.generate(prompt, temperature=0.0, max_tokens=COUNT, ignore_eos=True)
    assert completion.usage.generated_tokens == COUNT
    return completion.tokens


def lead_needed(name: str, *, half: bool = False) -> float:
    """Return the lead over the second best token that no rounding turns."""
    if half:
        return 0.1
    return 0.02 if RECIPES[name].approximate else 1e-3


@pytest.mark.parametrize("name", in_depth(NAMES))
def test_greedy_continuation_of_one_prompt(laboratory: Laboratory, name: str) -> None:
    compared = 0
    with laboratory.engine(name) as engine:
        for length in (17, 90):
            ours = continued(engine, tokens(length))
            compared += laboratory.require_greedy(name, tokens(length), ours, lead_needed(name))
    assert compared >= COUNT


@pytest.mark.parametrize("name", in_depth(TYPICAL))
@pytest.mark.parametrize("flash", [False, True])
def test_greedy_continuations_of_different_lengths_in_one_batch(
    laboratory: Laboratory, name: str, flash: bool
) -> None:
    prompts = [tokens(length, seed) for seed, length in enumerate(LENGTHS)]
    cache = "f16" if flash else "f32"
    with (
        laboratory.engine(name, cache=cache, flash=flash, slots=4) as engine,
        ThreadPoolExecutor(4) as pool,
    ):
        together = list(pool.map(lambda prompt: continued(engine, prompt), prompts))
        alone = [] if flash else [continued(engine, prompt) for prompt in prompts]
    compared = sum(
        laboratory.require_greedy(name, prompt, ours, lead_needed(name, half=flash))
        for prompt, ours in zip(prompts, together, strict=True)
    )
    assert compared >= COUNT
    assert flash or together == alone


@pytest.mark.parametrize("name", in_depth(TYPICAL))
def test_greedy_continuation_after_a_reused_prefix(laboratory: Laboratory, name: str) -> None:
    text = tokens(90)
    with laboratory.engine(name) as engine:
        continued(engine, [*text[:60], 11, 12, 13])
        completion = engine.generate(text, temperature=0.0, max_tokens=COUNT, ignore_eos=True)
    assert completion.usage.cached_tokens > 0
    assert laboratory.require_greedy(name, text, completion.tokens, lead_needed(name)) > 0
