"""Captured values: the same however a request is computed, each request's own, refused in time."""

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
from safetensors.numpy import load_file
from support.capturing import KINDS, LOAD, PROMPT, loaded, points_of, require_same
from support.engines import GREEDY, rest
from support.tiny_model import write_mixture

from tampu.engine.captures import Captured, CapturePlan, plan_capture
from tampu.engine.engine import Engine
from tampu.errors import OutOfMemoryError, RequestError, StoreError
from tampu.ml.library import gg
from tampu.nn.points import Point
from tampu.runner.capture_options import CaptureOptions
from tampu.runner.pooled import compute_rows

ANSWERED = ("hidden_states", "layer_outputs", "attentions")


@pytest.fixture(scope="module", params=KINDS)
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    with loaded(request.param, tmp_path_factory.mktemp("captures")) as engine:
        yield engine


def test_the_last_hidden_states_give_the_logits(engine: Engine) -> None:
    [rows] = engine.capture(PROMPT, layers=-1)["hidden_states"].values()
    graphs = engine.model.graphs
    logits = compute_rows(graphs.backend, graphs.model.head, rows)
    np.testing.assert_allclose(logits, engine.logits(PROMPT), rtol=1e-4, atol=1e-5)


def test_parts_add_up_to_what_the_layer_returns(engine: Engine) -> None:
    found = engine.capture(PROMPT, points_of(engine))
    for layer, after in found["layer_outputs"].items():
        mixer = found[
            "attention_outputs" if layer in found["attention_outputs"] else "mixer_outputs"
        ]
        parts = found["hidden_states"][layer] + mixer[layer] + found["mlp_outputs"][layer]
        np.testing.assert_allclose(after, parts, rtol=1e-4, atol=1e-5)


@given(
    length=st.integers(1, 100),
    chosen=st.sets(st.integers(0, 99), min_size=1, max_size=5),
    seed=st.integers(0, 3),
)
@settings(max_examples=15, deadline=None)
def test_chosen_positions_are_rows_of_all_whatever_is_cached(
    engine: Engine, length: int, chosen: set[int], seed: int
) -> None:
    prompt = [3 + (7 * i + seed) % 50 for i in range(length)]
    positions = sorted({each % length for each in chosen})
    every = engine.capture(prompt, "hidden_states")
    some = engine.capture(prompt, "hidden_states", positions=[*reversed(positions)])
    assert some.positions.tolist() == positions
    for layer, rows in every["hidden_states"].items():
        found = some["hidden_states"][layer]
        np.testing.assert_allclose(found, rows[positions], rtol=1e-4, atol=1e-5)
    rest(engine)


def test_requests_of_one_batch_capture_different_things(engine: Engine) -> None:
    wanted: list[dict[str, Any]] = [
        {"points": ("hidden_states:1",)},
        {"points": ("layer_outputs", "mlp_outputs:0"), "positions": (-1,)},
        {"points": ("hidden_states:0", "attentions"), "positions": (0, 5, 21, 24), "heads": (1,)},
        {},
        {"points": ("attentions", "mlp_outputs:1"), "heads": (0, 3)},
        {"points": ("attentions",), "layers": (-1,), "positions": (3, -1)},
    ]
    texts = [[*PROMPT[i:], 30 + i] for i in range(len(wanted))]

    def ask(number: int) -> tuple[list[int], Captured | None]:
        capture = {"capture": wanted[number]} if wanted[number] else {}
        done = engine.generate(texts[number], **GREEDY | {"max_tokens": 8}, **capture)
        return done.tokens, done.captured

    alone = [ask(number) for number in range(len(wanted))]
    barrier = threading.Barrier(len(wanted))

    def together(number: int) -> tuple[list[int], Captured | None]:
        barrier.wait()
        return ask(number)

    with ThreadPoolExecutor(len(wanted)) as pool:
        for (tokens, found), (same, expected) in zip(
            pool.map(together, range(len(wanted))), alone, strict=True
        ):
            assert tokens == same
            assert (found is None) is (expected is None)
            if found and expected:
                require_same(found, expected)


def test_values_of_an_answer_are_those_of_its_text_as_a_prompt(engine: Engine) -> None:
    done = engine.generate(
        PROMPT, **GREEDY | {"max_tokens": 6, "ignore_eos": True}, capture={"points": ANSWERED}
    )
    assert done.captured
    text = [*PROMPT, *done.tokens[:-1]]  # nothing is computed of the last token
    require_same(done.captured, engine.capture(text, ANSWERED))


def test_what_is_not_captured_is_computed_as_before(engine: Engine) -> None:
    """With a graph that was there before, unless the cells in use have become more."""
    counts, before, added = engine.model.graphs.counts, engine.logits(PROMPT), list[int]()
    for _ in range(4):
        engine.capture(PROMPT, points_of(engine))
        built = counts.built
        assert np.array_equal(engine.logits(PROMPT), before)
        added.append(counts.built - built)
    assert 0 in added


def test_a_file_has_the_rows_of_all_prompts(engine: Engine, tmp_path: Path) -> None:
    texts = [[3 + (i * k) % 50 for k in range(1 + i % 20)] for i in range(1, 40)]
    path = tmp_path / "states.safetensors"
    count = engine.capture_file(path, texts, ["hidden_states:1", "mlp_outputs:0"])
    found = load_file(path)
    assert count == sum(map(len, texts)) == len(found["prompts"])
    assert found["tokens"].tolist() == [token for text in texts for token in text]
    for index in (0, 7, 38):
        own = found["prompts"] == index
        expected = engine.capture(texts[index], ["hidden_states:1", "mlp_outputs:0"])
        assert found["positions"][own].tolist() == expected.positions.tolist()
        for key, rows in (
            ("hidden_states.1", expected["hidden_states"][1]),
            ("mlp_outputs.0", expected["mlp_outputs"][0]),
        ):
            np.testing.assert_allclose(found[key][own], rows, rtol=1e-4, atol=1e-5)


def test_no_file_is_left_of_a_prompt_that_is_refused(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="position 3 is outside"):
        engine.capture_file(tmp_path / "x", [PROMPT, [3, 4]], positions=[3])
    with pytest.raises(RequestError, match="capture_file: attentions do not have a row for each"):
        engine.capture_file(tmp_path / "x", [PROMPT], "attentions")
    with pytest.raises(StoreError, match="cannot write"):
        engine.capture_file(tmp_path / "no folder" / "x", [PROMPT])
    assert [*tmp_path.iterdir()] == []


def test_saved_values_are_read_by_the_library_of_the_format(engine: Engine, tmp_path: Path) -> None:
    found = engine.capture(PROMPT, layers=[0, 1])
    found.save(tmp_path / "x")
    read = load_file(tmp_path / "x")
    assert np.array_equal(read["hidden_states.1"], found["hidden_states"][1])
    assert np.array_equal(read["positions"], found.positions)


def test_the_lens_at_the_last_layer_shows_the_logits(engine: Engine) -> None:
    lens = engine.logit_lens(PROMPT, top=3)
    logits = engine.logits(PROMPT)
    assert lens.tokens.shape == (len(lens.layers), len(PROMPT), 3)
    assert np.array_equal(lens.tokens[-1, :, 0], logits.argmax(-1))
    exact = logits - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
    exact -= logits.max(-1, keepdims=True)
    np.testing.assert_allclose(lens.logprobs[-1, :, 0], exact.max(-1), rtol=1e-3, atol=1e-4)


REFUSED = [
    ({"points": ["hidden_state"]}, "the model has no point 'hidden_state'; it has hidden_states,"),
    ({"points": ["router_logits"]}, "the model has no point 'router_logits'"),
    ({"points": ["mlp_outputs:x"]}, "'mlp_outputs:x' does not end with a layer's number"),
    ({"points": []}, "points is empty"),
    ({"layers": []}, "layers is empty"),
    ({"layers": 99}, "layer 99 has no hidden_states; layers 0 to"),
    ({"layers": -99}, "layer -99 has no hidden_states"),
    ({"positions": []}, "positions is empty"),
    ({"positions": [20]}, "position 20 is outside of a prompt of 20 tokens"),
    ({"positions": [-21]}, "position -21 is outside of a prompt of 20 tokens"),
    ({"heads": []}, "heads is empty"),
    ({"heads": 0}, "heads are those of attentions, which are not captured"),
    ({"points": "attentions", "heads": [0, 99]}, r"no head 99: attentions:\d has heads 0 to \d"),
    ({"points": "attentions", "heads": -1}, "there is no head -1"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED)
def test_what_is_not_there_is_named(engine: Engine, given: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        engine.capture(PROMPT, **given)
    assert engine.capture(PROMPT).positions.tolist() == [*range(20)]


def test_router_logits_choose_the_experts(tmp_path: Path) -> None:
    points = ["router_logits", "router_indices", "mlp_outputs"]
    with Engine.load(write_mixture(tmp_path / "model.gguf", layers=2), **LOAD) as engine:
        found = engine.capture(PROMPT, points)
        metadata = engine.info.metadata
        experts, chosen = (metadata.integer(f"expert_{each}count") for each in ("", "used_"))
        for layer, logits in found["router_logits"].items():
            assert logits.shape == (20, experts)
            best = np.argsort(-logits, axis=-1)[:, :chosen]
            indices = found["router_indices"][layer]
            assert indices.dtype == np.int32
            assert np.array_equal(np.sort(indices), np.sort(best))
        rows = engine.capture_file(tmp_path / "file", [PROMPT, PROMPT[:3]], points)
        written = load_file(tmp_path / "file")["router_indices.1"]
        assert np.array_equal(written[: len(PROMPT)], found["router_indices"][1])
        assert (rows, written.dtype) == (23, np.int32)


def test_a_capture_larger_than_memory_is_refused_before_it_begins() -> None:
    n = 1 << 20
    plan = CapturePlan((Point("hidden_states", 0),), (n,), None, None, n, n, n)
    with pytest.raises(OutOfMemoryError, match=r"1048576 positions of 1 points need 13194.1 GB"):
        plan.check_memory(free=1 << 30)


def test_a_capture_that_gets_no_memory_ends_no_other_request(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the others share the rows of its prompt, and are computed in the same batches."""
    texts = [[*PROMPT, 30 + i] for i in range(4)]
    options = GREEDY | {"max_tokens": 12, "ignore_eos": True}
    alone = [engine.generate(text, **options).tokens for text in texts]
    rest(engine)
    reserve, barrier = gg.ggml_backend_sched_reserve, threading.Barrier(4)

    def reserve_unless_captured(scheduler: int, graph: Any) -> bool:
        captures = gg.ggml_graph_get_tensor(graph, b"captured_rows")
        return not captures and reserve(scheduler, graph)

    monkeypatch.setattr(gg, "ggml_backend_sched_reserve", reserve_unless_captured)

    def together(number: int) -> list[int] | str:
        barrier.wait()
        capture = {"capture": {"points": ["hidden_states"]}} if number == 2 else {}
        try:
            return engine.generate(texts[number], **options, **capture).tokens
        except OutOfMemoryError as error:
            return str(error)

    with ThreadPoolExecutor(4) as pool:
        found = [*pool.map(together, range(4))]
    assert "capture: there is no memory for the values of one step" in found[2]
    assert [each for each in found if isinstance(each, list)] == [*alone[:2], alone[3]]
    monkeypatch.undo()
    assert engine.capture(PROMPT).positions.tolist() == [*range(20)]
    rest(engine)


def test_embeddings_come_with_what_is_captured(engine: Engine) -> None:
    texts = [PROMPT, PROMPT[:7], PROMPT]
    capture: dict[str, Any] = {"points": ["hidden_states", "attentions"], "positions": [-1, 0]}
    vectors, captured = engine.embed(texts, capture=capture)
    np.testing.assert_allclose(vectors, engine.embed(texts), rtol=1e-4, atol=1e-6)
    for text, found in zip(texts, captured, strict=True):
        require_same(found, engine.capture(text, capture["points"], positions=[-1, 0]))
    with pytest.raises(RequestError, match="capture is not supported with late_chunking"):
        engine.embed(texts, late_chunking=True, capture=capture)
    with pytest.raises(RequestError, match=r"capture: .*point"):
        engine.embed(texts, capture={"point": ["hidden_states"]})


def test_layers_that_lack_a_point_are_listed() -> None:
    known = {Point("attention_outputs", layer): 8 for layer in (1, 3, 7)}
    options = CaptureOptions(points=("attention_outputs",), layers=(2,))
    with pytest.raises(RequestError, match=r"layer 2 has no attention_outputs; layers 1, 3, 7"):
        plan_capture(options, known, 4, 4)
