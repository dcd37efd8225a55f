"""The parts that architectures are made of: what they compute, and shapes that do not fit."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.graphs import floats, integers
from support.reference import rms_norm, rope

from tampu.errors import ShapeError
from tampu.ml import RopeMode, RopeScaling, Tensor
from tampu.nn import Embedding, LayerNorm, Linear, Module, RMSNorm, Rope, relu_squared


def part(kind: type[Module], **weights: Any) -> Any:
    """Make a module with these weights."""
    made: Any = kind()
    made.bias = None
    for name, value in weights.items():
        setattr(made, name, value)
    return made


def test_linear_multiplies_and_adds_the_bias_if_there_is_one(compute: Callable[..., Any]) -> None:
    x, w, b = floats(3, 8), floats(5, 8, seed=1), floats(5, seed=2)
    plain, moved = compute(
        lambda x, w, b: (part(Linear, weight=w)(x), part(Linear, weight=w, bias=b)(x)), x, w, b
    )
    np.testing.assert_allclose(plain, x @ w.T, atol=1e-5)
    np.testing.assert_allclose(moved, x @ w.T + b, atol=1e-5)


def test_an_embedding_looks_up_rows(compute: Callable[..., Any]) -> None:
    table = floats(6, 4)
    found = compute(lambda t, i: part(Embedding, weight=t)(i), table, integers(5, 0, 5))
    assert np.array_equal(found, table[[5, 0, 5]])


def test_rms_norm_has_a_weight(compute: Callable[..., Any]) -> None:
    x, w = floats(3, 2, 8), floats(8, seed=1)
    found = compute(lambda x, w: part(RMSNorm, weight=w)(x, 1e-5), x, w)
    np.testing.assert_allclose(found, rms_norm(x, w, 1e-5), atol=1e-5)


def test_rope_carries_its_settings(compute: Callable[..., Any]) -> None:
    x, positions, factors = floats(3, 2, 8), integers(4, 0, 9), np.array([1, 2], np.float32)
    settings: dict[str, Any] = {"dimensions": 4, "base": 500.0, "mode": RopeMode.HALVES}
    settings["scaling"] = RopeScaling(frequency_scale=0.5)
    found = compute(lambda x, p, f: Rope(**settings, factors=f)(x, p), x, positions, factors)
    expected = rope(x, positions, **settings, factors=factors)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_layer_norm_may_have_a_weight_for_each_head(compute: Callable[..., Any]) -> None:
    x, w = floats(3, 2, 8), floats(2, 8, seed=1)
    found = compute(lambda x, w: part(LayerNorm, weight=w)(x, 1e-5), x, w)
    centred = x - x.mean(-1, keepdims=True)
    expected = centred / np.sqrt(centred.var(-1, keepdims=True) + 1e-5) * w
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_relu_squared_is_zero_below_zero(compute: Callable[..., Any]) -> None:
    x = floats(3, 8)
    np.testing.assert_allclose(compute(relu_squared, x), np.maximum(x, 0) ** 2, atol=1e-6)


@pytest.mark.parametrize("shape", [(1,), (4,), (7,), (3, 8)])
def test_a_norm_of_another_length_is_refused(
    given: Callable[[npt.NDArray[Any]], Tensor], shape: tuple[int, ...]
) -> None:
    with pytest.raises(ShapeError):
        part(RMSNorm, weight=given(floats(*shape)))(given(floats(3, 8)), 1e-5)


@pytest.mark.parametrize("shape", [(1,), (3,), (5,), (2, 6)])
def test_a_bias_of_another_length_is_refused(
    given: Callable[[npt.NDArray[Any]], Tensor], shape: tuple[int, ...]
) -> None:
    linear = part(Linear, weight=given(floats(6, 8)), bias=given(floats(*shape)))
    with pytest.raises(ShapeError):
        linear(given(floats(2, 8)))
