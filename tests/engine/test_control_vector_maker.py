"""Control vectors from pairs of prompts: numpy's directions, and answers that follow them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiny_model import Tiny, write_tiny

from tampu.engine.control_vector import ControlVector
from tampu.engine.control_vector_maker import Method, direction
from tampu.engine.engine import Engine
from tampu.errors import RequestError

POSITIVE = [[3, 4, 5, 20], [6, 7, 21], [8, 9, 10, 11, 12, 22], [13, 23], [14, 15, 24]]
NEGATIVE = [[3, 4, 5, 30, 31], [6, 7, 32], [8, 9, 33], [13, 34], [14, 15, 35, 36]]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = write_tiny(tmp_path_factory.mktemp("maker") / "m.gguf", Tiny(layers=3))
    with Engine.load(path, context=64, threads=1, cache_type="f32") as engine:
        yield engine


def outputs(
    engine: Engine, prompts: Sequence[list[int]], layer: int, pooling: str
) -> npt.NDArray[np.float64]:
    """Return one row per prompt, each captured by itself."""
    every = [engine.capture(each, f"layer_outputs:{layer}") for each in prompts]
    rows = [each["layer_outputs"][layer].astype(np.float64) for each in every]
    return np.array([each[-1] if pooling == "last" else each.mean(axis=0) for each in rows])


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("method", ["pca", "mean"])
def test_directions_are_numpys(
    engine: Engine, method: Method, pooling: Literal["last", "mean"]
) -> None:
    found = engine.make_control_vector(POSITIVE, NEGATIVE, method, pooling)
    assert found.model_hint == engine.info.architecture
    assert [*found.directions] == [1, 2]
    for layer, vector in found.directions.items():
        d = outputs(engine, POSITIVE, layer, pooling) - outputs(engine, NEGATIVE, layer, pooling)
        expected = d.mean(axis=0)
        if method == "pca":
            expected = np.linalg.eigh(d.T @ d).eigenvectors[:, -1]
            expected *= np.sign(expected @ d.mean(axis=0))
        expected /= np.linalg.norm(expected)
        np.testing.assert_allclose(vector, expected, atol=1e-4)


@given(
    st.lists(st.lists(st.floats(-10, 10), min_size=4, max_size=4), min_size=1, max_size=6),
    st.sampled_from(["pca", "mean"]),
)
def test_a_direction_has_length_1_and_points_to_the_positive_examples(
    rows: list[list[float]], method: Method
) -> None:
    differences = np.array(rows) + np.array([100.0, 0, 0, 0])
    found = direction(differences, method)
    assert np.linalg.norm(found) == pytest.approx(1)
    assert found @ differences.mean(axis=0) > 0
    np.testing.assert_allclose(direction(-differences, method), -found, atol=1e-6)


def test_swapped_prompts_give_the_opposite(engine: Engine) -> None:
    there, back = (engine.make_control_vector(*each) for each in (
        (POSITIVE, NEGATIVE), (NEGATIVE, POSITIVE)
    ))  # fmt: skip
    for layer, vector in there.directions.items():
        np.testing.assert_allclose(back.directions[layer], -vector, atol=1e-5)


def test_answers_of_the_demo_follow_the_vector(tmp_path: Path) -> None:
    def ask(a: int, b: int) -> list[dict[str, str]]:
        return [{"role": "user", "content": f"What is {a} + {b}?"}]

    pairs = [(a, b) for a in range(20, 60, 4) for b in range(20, 60, 3)]
    nineties = [ask(*each) for each in pairs if 90 <= sum(each) <= 99]
    sixties = [ask(*each) for each in pairs if 60 <= sum(each) <= 69]
    count = min(len(nineties), len(sixties))
    with Engine.load("demo", threads=1) as engine:
        vector = engine.make_control_vector(nineties[:count], sixties[:count])
        vector.save(tmp_path / "v.gguf")
        read = ControlVector.read(tmp_path / "v.gguf")

        def total(strength: float) -> int:
            steering = read.steering(strength, layers=(3, 3))
            asked = [ask(27, 58), ask(31, 52), ask(44, 34)]
            answers = [engine.chat(each, temperature=0, steering=steering).text for each in asked]
            return sum(map(int, answers))

        assert total(-4) < total(0) == 85 + 83 + 78 < total(8)


def test_what_makes_no_vector_is_named(engine: Engine, tmp_path: Path) -> None:
    for positive, negative, message in (
        ([], [], "pairs of prompts, not of 0 positive and 0 negative"),
        (POSITIVE, NEGATIVE[:2], "not of 5 positive and 2 negative"),
        (POSITIVE, POSITIVE, "the positive and the negative prompts are the same"),
        ([*POSITIVE, []], [*NEGATIVE, [3]], "outside of a prompt of 0 tokens"),
    ):
        with pytest.raises(RequestError, match=message):
            engine.make_control_vector(positive, negative)
    unknown: Any = "median"
    with pytest.raises(RequestError, match="method must be one of pca, mean"):
        engine.make_control_vector(POSITIVE, NEGATIVE, unknown)
    with pytest.raises(RequestError, match="the mean difference of the prompts is 0"):
        direction(np.array([[1.0, 2.0], [-1.0, -2.0]]), "mean")
    with (
        Engine.load(write_tiny(tmp_path / "1.gguf", Tiny(layers=1)), context=64) as small,
        pytest.raises(RequestError, match="of layers from 1 on"),
    ):
        small.make_control_vector(POSITIVE, NEGATIVE)
