"""A model with recurrent layers goes on from the states that it has kept, whatever runs beside it.

What is computed again, and what is not, is counted; the tokens are those of a model that read all.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from support.laboratory import Laboratory, tokens

from tampu.engine.engine import Engine

pytestmark = pytest.mark.parity

COUNT = 24
APART = 32  # tokens between the states of a prompt


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("qwen3next", "nemotron_h")]


@pytest.fixture(params=["lfm2", "qwen35", "falcon_h1", *SLOW])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def engine(laboratory: Laboratory, name: str) -> Iterator[Engine]:
    with laboratory.engine(name, slots=3) as engine:
        yield engine


def continued(engine: Engine, prompt: list[int], count: int = COUNT) -> tuple[list[int], int]:
    """Return a greedy continuation, and how many tokens of the prompt were not read again."""
    found = engine.generate(prompt, temperature=0.0, max_tokens=count, ignore_eos=True)
    return found.tokens, found.usage.cached_tokens


@pytest.fixture
def alone(laboratory: Laboratory, name: str) -> Callable[[list[int]], list[int]]:
    """Answer a prompt with a model of its own."""

    def alone(prompt: list[int]) -> list[int]:
        with laboratory.engine(name) as engine:
            return continued(engine, prompt)[0]

    return alone


@pytest.mark.seed("S78", "S81")
def test_a_repeated_prompt_computes_one_token(engine: Engine) -> None:
    first, cached = continued(engine, tokens(70))
    assert cached == 0
    assert continued(engine, tokens(70)) == (first, 69)


@pytest.mark.seed("S78")
def test_the_next_turn_resumes_where_the_answer_ended(
    alone: Callable[[list[int]], list[int]], engine: Engine
) -> None:
    answer, _ = continued(engine, tokens(50))
    prompt = [*tokens(50), *answer, 11, 12, 13]
    found, cached = continued(engine, prompt)
    assert 50 + COUNT - 1 <= cached < len(prompt)
    assert found == alone(prompt)


@pytest.mark.seed("S78")
@pytest.mark.parametrize("shared", [20, 40, 64, 100])
def test_prompts_share_a_prefix_up_to_its_last_state(
    alone: Callable[[list[int]], list[int]], engine: Engine, shared: int
) -> None:
    continued(engine, tokens(130))
    prompt = [*tokens(130)[:shared], *tokens(40, 7)]
    found, cached = continued(engine, prompt)
    assert cached == shared // APART * APART
    assert found == alone(prompt)


def test_forks_of_one_prompt_compute_it_once(engine: Engine) -> None:
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: continued(engine, tokens(90)), range(3)))
    assert len({tuple(answer) for answer, _ in found}) == 1
    assert sorted(cached for _, cached in found)[1:] >= [89, 89]


@pytest.mark.seed("S80")
def test_a_full_context_is_recomputed_without_its_middle(engine: Engine) -> None:
    found = engine.generate(tokens(200), temperature=0.0, max_tokens=120, ignore_eos=True)
    assert found.usage.generated_tokens == 120
    assert found.usage.dropped_tokens > 0


def test_answers_do_not_depend_on_concurrent_or_cancelled_requests(
    alone: Callable[[list[int]], list[int]], engine: Engine
) -> None:
    source = random.Random(1)
    prompts = [[*tokens(60)[: source.randrange(1, 60)], *tokens(5, seed)] for seed in range(6)]
    expected = [alone(prompt) for prompt in prompts]

    def ask(index: int) -> list[int] | None:
        if index % 3 == 2:
            stream = engine.stream(prompts[index], temperature=0.0, max_tokens=COUNT)
            with closing(stream):
                next(iter(stream), None)
            return None
        return continued(engine, prompts[index])[0]

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(ask, [*range(6), *range(6)]))
    for index, answer in enumerate(found):
        assert answer is None or answer == expected[index % 6], index


def test_no_graph_takes_more_memory_than_is_reserved(laboratory: Laboratory) -> None:
    """Vulkan's backend orders the nodes anew when a graph is planned again."""
    options: dict[str, Any] = {"context": 512, "batch": 64, "threads": 1, "cache_type": "f32"}
    path = laboratory.file("qwen35")
    with Engine.load(path, flash_attention=False, gpu_layers=99, **options) as engine:
        backend = engine.runner.graphs.backend
        reserved = backend.graph_bytes
        for count in (1, 65, 200):
            prompt = random.Random(0).choices(range(3, 100), k=count)
            engine.generate(prompt, max_tokens=2, temperature=0.0)
            assert backend.graph_bytes == reserved
