"""Looks at the layers of a running request: they say what capturing says, and change nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from support.engines import GREEDY
from support.tiny_hybrid import hybrid_weights, tiny_hybrid
from support.tiny_model import write_mixture, write_tiny
from support.waiting import wait_until

from tampu.engine.engine import Engine
from tampu.engine.layer_watch import LayersSeen, WatchLayers
from tampu.runner.events import TextDelta
from tampu.runner.steering_options import Steering

PROMPT = list(range(3, 23))
LONG: dict[str, Any] = GREEDY | {"max_tokens": 150}
LOAD: dict[str, Any] = {
    "context": 512, "slots": 4, "threads": 1, "cache_type": "f32", "flash_attention": False,
}  # fmt: skip


@pytest.fixture(scope="module", params=["attention", "hybrid", "mixture"])
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    path = tmp_path_factory.mktemp("watch") / "model.gguf"
    if request.param == "attention":
        write_tiny(path)
    elif request.param == "hybrid":
        write_tiny(path, tiny_hybrid(), weights=hybrid_weights())
    else:
        write_mixture(path, 2)
    with Engine.load(path, **LOAD) as engine:
        engine.generate([3], max_tokens=1)  # its threads are there before the first test begins
        yield engine


@contextmanager
def writing(engine: Engine, prompt: list[int], found: list[int], **options: Any) -> Iterator[None]:
    """Have answers written one after the other; `found` gets the tokens of the first one."""
    ended, begun = threading.Event(), threading.Event()

    def write() -> None:
        is_first = True
        while is_first or not ended.is_set():
            for event in engine.stream(prompt, **LONG | options):
                if isinstance(event, TextDelta):
                    begun.set()
                    found.extend(event.tokens if is_first else ())
            is_first = False

    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert begun.wait(60)
        yield
    finally:
        ended.set()
        thread.join()


def look(engine: Engine) -> LayersSeen:
    """Return a look; between two answers none is written."""

    def seen() -> LayersSeen | None:
        found = engine.ask(WatchLayers())
        return found if found.request else None

    found = wait_until(seen, "a request writes an answer")
    assert found is not None
    return found


STEERING = [(), Steering.scale("mlp_outputs:1", 0.5)]


@pytest.mark.parametrize("steering", STEERING, ids=["plain", "steered"])
def test_a_look_says_what_capturing_says_of_that_token(engine: Engine, steering: Any) -> None:
    alone = engine.generate(PROMPT, **LONG, steering=steering).tokens
    found: list[int] = []
    looks = []
    with writing(engine, PROMPT, found, steering=steering):
        looks = [look(engine) for _ in range(5)]
    assert found == alone
    whole = [*PROMPT, *alone]
    for seen in looks:
        assert seen.position >= len(PROMPT)
        assert seen.token == engine.tokenizer.token_text(whole[seen.position])
        before = whole[: seen.position + 1]
        captured = engine.capture(before, "layer_outputs", positions=[-1], steering=steering)
        lens = engine.logit_lens(before, positions=[-1], top=3, steering=steering)
        assert [each.layer for each in seen.layers] == [*lens.layers]
        for each, [tokens], [logprobs] in zip(seen.layers, lens.tokens, lens.logprobs, strict=True):
            row = captured["layer_outputs"][each.layer][0]
            assert each.norm == pytest.approx(float(np.linalg.norm(row)), rel=1e-3)
            assert each.tokens == tuple(engine.tokenizer.token_text(int(one)) for one in tokens)
            assert each.probabilities == pytest.approx(np.exp(logprobs).tolist(), rel=1e-2)


def test_the_experts_are_those_that_the_router_chose(engine: Engine) -> None:
    found: list[int] = []
    with writing(engine, PROMPT, found):
        seen = look(engine)
    metadata = engine.info.metadata
    used = metadata.integer("expert_used_count") if metadata.has("expert_used_count") else 0
    assert seen.experts == (metadata.integer("expert_count") if used else 0)
    before = [*PROMPT, *found][: seen.position + 1]
    for each in seen.layers:
        assert len(each.experts) == used
        if used:
            point = f"router_indices:{each.layer}"
            [[chosen]] = engine.capture(before, point, positions=[-1])["router_indices"].values()
            assert [*each.experts] == chosen.tolist()


def test_nothing_is_seen_while_nothing_is_written(engine: Engine) -> None:
    assert engine.ask(WatchLayers()) == LayersSeen()


def test_the_wanted_request_is_seen_among_others(engine: Engine) -> None:
    with writing(engine, PROMPT, []), writing(engine, PROMPT[::-1], []):
        first = look(engine)
        again = [engine.ask(WatchLayers(first.request)) for _ in range(3)]
        seen = [each for each in again if each.request]
        assert all(each.request >= first.request for each in seen)


def test_drafts_of_a_watched_request_go_on(engine: Engine) -> None:
    loop = [5, 6, 7, 8] * 8
    alone = engine.generate(loop, **LONG).tokens
    found: list[int] = []
    with writing(engine, loop, found):
        for _ in range(5):
            look(engine)
    assert found == alone
