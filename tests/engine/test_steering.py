"""Steering: exact for each request of a batch, kept apart in the cache, refused in time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.engines import GREEDY, rest
from support.gguf_files import write_gguf
from support.tiny_hybrid import hybrid_weights, tiny_hybrid
from support.tiny_model import Tiny, write_tiny

from tampu.engine.control_vector import ControlVector
from tampu.engine.engine import Engine
from tampu.engine.steering import GivenSteering
from tampu.errors import ComputeError, ModelFileError, ModelNotFoundError, RequestError, TampuError
from tampu.runner.steering_options import Steering

PROMPT = list(range(3, 23))
FEATURES = Tiny().embedding
SHORT: dict[str, Any] = GREEDY | {"max_tokens": 12}
LOAD: dict[str, Any] = {
    "context": 128, "slots": 4, "threads": 1, "batch": 32, "cache_type": "f32",
    "flash_attention": False,
}  # fmt: skip


def vector(seed: int) -> np.typing.NDArray[np.float64]:
    return np.random.default_rng(seed).standard_normal(FEATURES)


MIXED: list[list[Steering]] = [
    [],
    [Steering.add("layer_outputs:0", vector(1), 2.0)],
    [Steering.ablate("hidden_states", vector(2)), Steering.ablate("hidden_states", vector(3))],
    [Steering.scale("mlp_outputs:1", 0.5), Steering.add("layer_outputs:0", vector(4))],
]


@pytest.fixture(scope="module", params=["attention", "hybrid"])
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    path = tmp_path_factory.mktemp("steering") / "model.gguf"
    if request.param == "attention":
        write_tiny(path)
    else:
        write_tiny(path, tiny_hybrid(), weights=hybrid_weights())
    with Engine.load(path, **LOAD) as engine:
        engine.generate([3], max_tokens=1)  # its threads are there before the first test begins
        yield engine


def states(engine: Engine, point: str, steering: GivenSteering) -> np.typing.NDArray[np.float32]:
    name, _, layer = point.partition(":")
    return engine.capture(PROMPT, point, steering=steering)[name][int(layer)]


def test_directions_are_removed_in_deterministic_graphs_too(tmp_path: Path) -> None:
    load = LOAD | {"deterministic": True, "flash_attention": True}
    with Engine.load(write_tiny(tmp_path / "model.gguf"), **load) as engine:
        found = states(engine, "layer_outputs:0", Steering.ablate("layer_outputs:0", vector(1)))
        np.testing.assert_allclose(found @ vector(1), 0, atol=1e-4)


def test_each_operation_does_what_it_says(engine: Engine) -> None:
    point, v = "layer_outputs:0", vector(1)
    plain, unit = states(engine, point, ()), v / np.linalg.norm(v)
    shift = np.outer(plain @ unit, unit)
    for change, expected in (
        (Steering.add(point, v, 1.5), plain + 1.5 * v),
        (Steering.ablate(point, v), plain - shift),
        (Steering.ablate(point, v, 0.25), plain - 0.25 * shift),
        (Steering.scale(point, -0.5), -0.5 * plain),
    ):
        np.testing.assert_allclose(states(engine, point, change), expected, rtol=1e-4, atol=1e-5)
    both = [Steering.add(point, v), Steering.scale(point, 2.0), Steering.add(point, vector(2))]
    expected = 2 * (plain + v) + vector(2)
    np.testing.assert_allclose(states(engine, point, both), expected, rtol=1e-4, atol=1e-5)


def test_what_follows_reads_the_changed_values(engine: Engine) -> None:
    change = Steering.add("layer_outputs:0", vector(1), 3.0)
    np.testing.assert_array_equal(
        states(engine, "hidden_states:1", change), states(engine, "layer_outputs:0", change)
    )
    plain, changed = engine.logits(PROMPT), engine.logits(PROMPT, steering=change)
    assert np.abs(changed - plain).max() > 0.1
    last = Steering.scale("hidden_states:-1", 2.0)  # what the head reads
    np.testing.assert_allclose(engine.logits(PROMPT, steering=last), 2 * plain, rtol=1e-3)


def test_requests_of_one_batch_are_steered_each_its_own_way(engine: Engine) -> None:
    texts = [[*PROMPT[i:], 30 + i] for i in range(4)]

    def ask(number: int) -> tuple[list[int], np.typing.NDArray[np.float32]]:
        done = engine.generate(
            texts[number],
            **SHORT,
            steering=MIXED[number],
            capture={"points": ["hidden_states:-1"]},
        )
        assert done.captured
        return done.tokens, next(iter(done.captured["hidden_states"].values()))

    alone = [ask(number) for number in range(4)]
    assert len({tuple(tokens) for tokens, _ in alone}) == 4
    barrier = threading.Barrier(4)

    def together(number: int) -> tuple[list[int], np.typing.NDArray[np.float32]]:
        barrier.wait()
        return ask(number)

    with ThreadPoolExecutor(4) as pool:
        found = [*pool.map(together, range(4))]
    for (tokens, values), (same, expected) in zip(found, alone, strict=True):
        assert tokens == same
        np.testing.assert_allclose(values, expected, rtol=1e-3, atol=1e-4)


def test_rows_are_shared_by_requests_with_the_same_steering_only(engine: Engine) -> None:
    prompt = [*range(40, 20, -1)]

    def cached(steering: list[Steering]) -> int:
        return engine.generate(prompt, steering=steering, **SHORT).usage.cached_tokens

    first = [cached(each) for each in MIXED]
    again = [cached([*each]) for each in MIXED]
    assert first == [0] * 4
    assert min(again) > 0
    assert again[1:] == again[:-1]
    half = [Steering.add("layer_outputs:0", vector(1), 1.0)]
    assert cached(half) == 0
    assert cached([Steering.add("layer_outputs:0", vector(1) * 0.5, 2.0)]) == again[0]
    assert cached([Steering.scale("layer_outputs:0", 1.0)]) == again[0]  # it changes nothing
    rest(engine)


def test_what_is_not_steered_is_computed_as_before(engine: Engine) -> None:
    before = engine.logits(PROMPT)
    engine.logits(PROMPT, steering=MIXED[2])
    assert np.array_equal(engine.logits(PROMPT), before)


def test_steering_that_changes_nothing_leaves_the_bits(engine: Engine) -> None:
    before = engine.logits(PROMPT)
    cancelled = [
        Steering.add("layer_outputs:0", vector(1)),
        Steering.add("layer_outputs:0", -vector(1)),
    ]
    assert np.array_equal(engine.logits(PROMPT, steering=cancelled), before)


def test_embeddings_are_of_the_steered_model(engine: Engine) -> None:
    change = Steering.add("hidden_states:-1", vector(1), 2.0)
    plain = engine.embed([PROMPT], normalize=False)
    changed = engine.embed([PROMPT], normalize=False, steering=change)
    np.testing.assert_allclose(changed, plain + 2 * vector(1), rtol=1e-3, atol=1e-4)


def test_a_control_vector_is_added_to_what_layers_return(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "vector.gguf"
    ControlVector({1: vector(1)}, "llama").save(path)
    read = ControlVector.read(path)
    assert read.model_hint == "llama"
    plain = states(engine, "layer_outputs:1", ())
    for given, strength in ((read, 1.0), (read.steering(-0.5), -0.5)):
        found = states(engine, "layer_outputs:1", given)
        np.testing.assert_allclose(found, plain + strength * vector(1), rtol=1e-4, atol=1e-5)
    with pytest.raises(RequestError, match="has no layer of 2 to 3"):
        read.steering(layers=(2, 3))


REFUSED: list[tuple[Any, str]] = [
    (Steering.scale("hidden_state", 2.0), "the model has no point 'hidden_state'; it has hidden_"),
    (Steering.scale("router_logits", 2.0), "the model has no point 'router_logits'"),
    (Steering.scale("layer_outputs:x", 2.0), "'layer_outputs:x' does not end with a layer's"),
    (Steering.scale("layer_outputs:99", 2.0), "layer 99 has no layer_outputs; layers 0 to 1"),
    (Steering.scale("layer_outputs", 2.0, layers=[-9]), "layer -9 has no layer_outputs"),
    (
        Steering.add("layer_outputs:1", [1.0, 2.0]),
        f"a vector of 2 numbers does not fit layer_outputs:1, whose values have {FEATURES}",
    ),
    (
        [Steering.ablate("layer_outputs:1", vector(seed)) for seed in range(65)],
        "more than 64 directions at layer_outputs:1",
    ),
    (ControlVector({7: vector(0)}), "layer 7 has no layer_outputs; layers 0 to 1"),
    ("happy", "steering must be .*, not a string|steering must be a list of changes, not str"),
    ([1.0], r"steering\[0\] must be|steering has Steering or ControlVector objects, not float"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED)
def test_what_does_not_fit_the_model_is_named(engine: Engine, given: Any, message: str) -> None:
    for ask in (engine.generate, engine.capture, engine.logits):
        with pytest.raises(RequestError, match=message):
            ask(PROMPT, steering=given)


def test_a_strength_that_no_model_bears_is_named(engine: Engine) -> None:
    with pytest.raises(ComputeError, match="the steering of the request may be too strong"):
        engine.generate(PROMPT, steering=[Steering.scale("layer_outputs", 1e6)] * 6, **SHORT)
    with pytest.raises(RequestError, match="the changes at layer_outputs:0 together are too large"):
        engine.generate(PROMPT, steering=[Steering.scale("layer_outputs", 1e6)] * 7, **SHORT)
    assert engine.generate(PROMPT, **SHORT).tokens


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"operation": "add"}, "add needs a vector"),
    ({"operation": "scale", "vector": b"abcd"}, "scale takes no vector"),
    ({"operation": "add", "vector": b"abc"}, "the bytes of a vector are F32"),
    ({"operation": "ablate", "vector": bytes(8)}, "needs a direction, and the vector is zero"),
    ({"operation": "add", "vector": b"\xff" * 8}, "a vector has NaN or infinity"),
    ({"operation": "scale", "strength": float("nan")}, "strength must be -1e"),
    ({"operation": "scale", "strength": 1e7}, "strength must be -1e"),
    ({"operation": "scale", "layers": ()}, "layers is empty"),
]


@pytest.mark.parametrize(("given", "message"), WRONG)
def test_changes_that_cannot_be_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        Steering(point="layer_outputs", **given)


@pytest.mark.parametrize("given", ["x", [[1.0]], [1e39], 1.0, ["a"]])
def test_vectors_are_lists_of_numbers(given: Any) -> None:
    with pytest.raises(RequestError, match="steering: a vector"):
        Steering.add("layer_outputs:0", given)


def test_control_vectors_have_directions_of_one_length() -> None:
    for wrong in ({}, {0: [1.0]}, {1: [1.0], 2: [1.0, 2.0]}):
        with pytest.raises(RequestError, match="directions of one length, of layers from 1 on"):
            ControlVector(wrong)


@pytest.mark.parametrize(
    ("tensors", "kind", "message"),
    [
        ({}, ModelFileError, "has no control vector"),
        ({"direction.0": [1.0]}, ModelFileError, "has no control vector: tensor direction.0"),
        ({"direction.x": [1.0]}, ModelFileError, "has no control vector: tensor direction.x"),
        ({"output.weight": [1.0]}, ModelFileError, "has no control vector: tensor output.weight"),
        ({"direction.1": [[1.0]]}, ModelFileError, "is not F32 with one dimension"),
        ({"direction.1": [float("inf")]}, ModelFileError, "one with NaN or infinity"),
        ({"direction.1": [1.0], "direction.2": [1.0, 2.0]}, ModelFileError, "several lengths"),
    ],
)
def test_files_without_a_control_vector_are_refused(
    tmp_path: Path, tensors: dict[str, Any], kind: type[TampuError], message: str
) -> None:
    path = tmp_path / "wrong.gguf"
    write_gguf(path, "controlvector", {}, {n: np.array(v, np.float32) for n, v in tensors.items()})
    with pytest.raises(kind, match=message):
        ControlVector.read(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        ControlVector.read(tmp_path / "none.gguf")
    with pytest.raises(ModelFileError, match="cannot write"):
        ControlVector({1: [1.0]}).save(tmp_path / "no folder" / "x.gguf")
