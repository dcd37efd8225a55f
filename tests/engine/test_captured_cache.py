"""Captured values of the cache: attention weights, and states of recurrent layers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.capturing import KINDS, LOAD, PROMPT, loaded, require_same
from support.engines import GREEDY, rest
from support.tiny_hybrid import FEATURES, KERNEL, VALUE_HEADS
from support.tiny_model import write_tiny

from tampu.engine.captures import Captured, plan_capture
from tampu.engine.engine import Engine
from tampu.errors import OutOfMemoryError, RequestError
from tampu.nn.points import Point
from tampu.runner.capture_options import CaptureOptions
from tampu.runner.steering_options import Steering

STATES = ("conv_states", "recurrent_states")


@pytest.fixture(scope="module", params=KINDS)
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    with loaded(request.param, tmp_path_factory.mktemp("captures")) as engine:
        yield engine


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with loaded("hybrid", tmp_path_factory.mktemp("captures")) as engine:
        yield engine


# -- attention weights ---------------------------------------------------------------------------


def test_attention_weights_are_shares_of_what_a_token_can_see(engine: Engine) -> None:
    found = engine.capture(PROMPT, "attentions")["attentions"]
    for weights in found.values():
        assert weights.shape[1:] == (20, 20)
        assert not np.triu(weights, 1).any()
        np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)


def test_chosen_heads_are_in_the_order_asked_and_positions_ascend(engine: Engine) -> None:
    every = engine.capture(PROMPT, "attentions")["attentions"]
    some = engine.capture(PROMPT, "attentions", positions=[-1, 4], heads=[2, 0, 2])
    assert some.positions.tolist() == [4, 19]
    for layer, weights in every.items():
        own = some["attentions"][layer]
        assert own.shape == (3, 2, 20)
        np.testing.assert_allclose(own, weights[[2, 0, 2]][:, [4, 19]], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "load",
    [
        {"deterministic": True, "flash_attention": True},
        {"flash_attention": True},
        {"flash_attention": True, "cache_type": "f16"},
        {"batch": 8},
        {"kernels": "off"},
    ],
    ids=str,
)
def test_attention_weights_do_not_depend_on_how_attention_is_computed(
    tmp_path: Path, load: dict[str, Any]
) -> None:
    """Behind the tokens of another prompt, half of which they share."""
    path = write_tiny(tmp_path / "model.gguf")
    with Engine.load(path, **LOAD) as plain, Engine.load(path, **LOAD | load) as other:
        wanted = plain.capture(PROMPT, "attentions", heads=[1])
        other.generate([*PROMPT[:10], 50, 51, 52], max_tokens=3)
        found = other.capture(PROMPT, "attentions", heads=[1])
        last = other.capture(PROMPT, "attentions", heads=[1], positions=[-1])
    for layer, weights in wanted["attentions"].items():
        np.testing.assert_allclose(found["attentions"][layer], weights, rtol=2e-2, atol=1e-4)
        np.testing.assert_allclose(
            last["attentions"][layer][:, 0], weights[:, -1], rtol=2e-2, atol=1e-4
        )


def test_what_can_only_be_seen_is_not_steered(engine: Engine) -> None:
    with pytest.raises(RequestError, match="steering: the model has no point 'attentions'"):
        engine.generate(PROMPT, steering=Steering.scale("attentions", 2.0))


def test_attention_weights_larger_than_memory_are_refused_before_they_are_computed() -> None:
    known = {Point("attentions", 0): 8}
    options = CaptureOptions(points=("attentions",))
    with pytest.raises(OutOfMemoryError, match=r"need 4.8 GB .* fewer points, layers, heads or"):
        plan_capture(options, known, 4000, 7071).check_memory(free=1 << 30)
    chosen = CaptureOptions(points=("attentions",), positions=(3, 5), heads=(7,))
    plan_capture(chosen, known, 4000, 7071).check_memory(free=1 << 30)


# -- states --------------------------------------------------------------------------------------


def test_states_have_the_shapes_of_the_cache(hybrid: Engine) -> None:
    found = hybrid.capture(PROMPT, STATES, positions=[-1, 2])
    [conv], [recurrent] = (found[name].values() for name in STATES)
    assert conv.shape[::2] == (2, KERNEL - 1)
    assert recurrent.shape == (2, VALUE_HEADS, FEATURES, FEATURES)


@given(
    length=st.integers(1, 100),
    chosen=st.sets(st.integers(0, 99), min_size=1, max_size=5),
    seed=st.integers(0, 3),
)
@settings(max_examples=15, deadline=None)
def test_a_state_is_that_after_a_shorter_prompt(
    hybrid: Engine, length: int, chosen: set[int], seed: int
) -> None:
    """However the prompt is divided, and whatever is cached."""
    prompt = [3 + (7 * i + seed) % 50 for i in range(length)]
    positions = sorted({each % length for each in chosen})
    found = hybrid.capture(prompt, (*STATES, "hidden_states"), positions=positions)
    for row, position in enumerate(positions):
        own = hybrid.capture(prompt[: position + 1], STATES, positions=[-1])
        for name in STATES:
            np.testing.assert_allclose(found[name][0][row], own[name][0][0], rtol=1e-3, atol=1e-5)
    rest(hybrid)


def test_requests_of_one_batch_capture_their_own_states(hybrid: Engine) -> None:
    texts = [[*PROMPT[i:], 30 + i] for i in range(4)]
    options = GREEDY | {"max_tokens": 6, "ignore_eos": True}

    def ask(number: int) -> Captured | None:
        points = ["attentions"] if number == 2 else [*STATES, "layer_outputs"]
        positions = [number, -1, len(texts[number]) + 1]
        capture = {"points": points, "positions": positions}
        return hybrid.generate(texts[number], **options, capture=capture).captured

    alone = [ask(number) for number in range(4)]
    barrier = threading.Barrier(4)

    def together(number: int) -> Captured | None:
        barrier.wait()
        return ask(number)

    with ThreadPoolExecutor(4) as pool:
        for found, expected in zip(pool.map(together, range(4)), alone, strict=True):
            assert found
            assert expected
            require_same(found, expected)


def test_states_need_positions(hybrid: Engine) -> None:
    with pytest.raises(RequestError, match="capture: recurrent_states:0 needs positions"):
        hybrid.capture(PROMPT, "recurrent_states")
    with pytest.raises(RequestError, match="layer 1 has no conv_states; layers 0 to 0 have it"):
        hybrid.capture(PROMPT, "conv_states:1", positions=[-1])
