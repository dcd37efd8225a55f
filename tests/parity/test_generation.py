"""Greedy continuations equal those of Hugging Face transformers: alone, together, after reuse."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from support.checkpoints import RECIPES
from support.laboratory import GREEDY, Greedy, Laboratory, tokens

from tampu.engine import Engine

pytestmark = pytest.mark.parity

NAMES = list(RECIPES)
TYPICAL = ["llama_rope_llama3", "mistral_window", "qwen2", "qwen3", "gemma3_text"]
LENGTHS = [3, 90, 17, 48]


def continued(engine: Engine, prompt: list[int]) -> list[int]:
    options = {"temperature": 0.0, "max_tokens": GREEDY, "ignore_eos": True}
    return engine.generate(prompt, **options).tokens


def agreeing(ours: list[int], reference: Greedy, unclear: float) -> int:
    """Require equality up to the first choice that rounding may turn; return how many that were."""
    assert len(ours) == GREEDY
    clear = next((i for i, lead in enumerate(reference.leads) if lead < unclear), GREEDY)
    assert ours[:clear] == reference.tokens[:clear]
    return clear


def lead_needed(name: str, *, half: bool = False) -> float:
    """Return the lead over the second best token that no rounding turns."""
    return 0.1 if half or RECIPES[name].approximate else 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_a_continuation_alone(laboratory: Laboratory, name: str) -> None:
    with laboratory.engine(name) as engine:
        compared = [
            agreeing(
                continued(engine, tokens(length)),
                laboratory.greedy(name, length),
                lead_needed(name),
            )
            for length in (17, 40, 90)
        ]
    assert sum(compared) >= GREEDY


@pytest.mark.parametrize("name", TYPICAL)
@pytest.mark.parametrize("flash", [False, True])
def test_several_continuations_of_unlike_lengths_together(
    laboratory: Laboratory, name: str, flash: bool
) -> None:
    prompts = [tokens(length, seed) for seed, length in enumerate(LENGTHS)]
    cache = "f16" if flash else "f32"
    with laboratory.engine(name, cache=cache, flash=flash) as engine:
        alone = [continued(engine, prompt) for prompt in prompts]
    with (
        laboratory.engine(name, cache=cache, flash=flash, slots=4) as engine,
        ThreadPoolExecutor(4) as pool,
    ):
        together = list(pool.map(lambda prompt: continued(engine, prompt), prompts))
    compared = 0
    for seed, (length, ours) in enumerate(zip(LENGTHS, together, strict=True)):
        reference = laboratory.greedy(name, length, seed)
        compared += agreeing(ours, reference, lead_needed(name, half=flash))
        agreeing(alone[seed], reference, lead_needed(name, half=flash))
        if not flash:
            assert ours == alone[seed]
    assert compared >= 16


@pytest.mark.parametrize("name", TYPICAL)
def test_a_continuation_after_the_reuse_of_a_prefix(laboratory: Laboratory, name: str) -> None:
    reference = laboratory.greedy(name, 90)
    with laboratory.engine(name) as engine:
        continued(engine, [*tokens(90)[:60], 11, 12, 13])
        completion = engine.generate(
            tokens(90), temperature=0.0, max_tokens=GREEDY, ignore_eos=True
        )
    agreeing(completion.tokens, reference, lead_needed(name))
    assert completion.usage.cached_tokens >= 0
