"""F16 weights as integers of 16 bits: no less exact than ggml, whatever sizes meet in a block."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.kernels import levels

from tampu.ml import GGMLType

FIXED = [level for level in levels() if level.startswith("avx512")] or [None]
BLOCK = 64


def error(found: Any, expected: Any) -> Any:
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


def normal(*shape: int, seed: int = 0) -> npt.NDArray[Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def heavy(*shape: Any, seed: int = 0) -> npt.NDArray[Any]:
    """Numbers of which few are much larger than the others, as after a gate."""
    return normal(*shape, seed=seed) ** 3


def outliers(*shape: Any, seed: int = 0) -> npt.NDArray[Any]:
    """One number in each block a thousand times as large as the others, always the same one."""
    numbers = normal(*shape, seed=seed)
    numbers[..., 5::BLOCK] *= 1000
    return numbers


def halved(*shape: int, seed: int = 0) -> npt.NDArray[Any]:
    """One half of each block is a hundred thousand times as large as the other."""
    numbers = normal(*shape, seed=seed)
    numbers[..., np.arange(shape[-1]) % BLOCK < BLOCK // 2] *= 1e-5
    return numbers


def ladder(*shape: Any, seed: int = 0) -> npt.NDArray[Any]:
    """Every order of magnitude that a half has."""
    sizes = 2.0 ** (np.arange(shape[-1]) % 24 - 12)
    return normal(*shape, seed=seed) * sizes.astype(np.float32)


def without_outliers(*shape: Any, seed: int = 0) -> npt.NDArray[Any]:
    """Zero where `outliers` has them: they shall not hide what the others lose."""
    numbers = normal(*shape, seed=seed)
    numbers[..., 5::BLOCK] = 0
    return numbers


def small_only(*shape: Any, seed: int = 0) -> npt.NDArray[Any]:
    """Zero where `halved` is large."""
    numbers = normal(*shape, seed=seed)
    numbers[..., np.arange(shape[-1]) % BLOCK >= BLOCK // 2] = 0
    return numbers


@pytest.mark.parametrize("level", FIXED)
@pytest.mark.parametrize(
    ("weights", "inputs"),
    [
        *((normal, inputs) for inputs in (heavy, outliers, halved, ladder)),
        *((weights, normal) for weights in (heavy, outliers, halved, ladder)),
        *((both, both) for both in (heavy, outliers, halved, ladder)),
        (without_outliers, outliers),
        (outliers, without_outliers),
        (small_only, halved),
        (halved, small_only),
    ],
)
def test_one_block_may_hold_numbers_of_any_size(
    level_backends: Callable[..., Any],
    load: Any,
    multiply: Callable[..., Any],
    level: str,
    weights: Callable[..., Any],
    inputs: Callable[..., Any],
) -> None:
    values, bind = load(weights(48, 512), GGMLType.F16)
    x = inputs(20, 512, seed=1)
    expected = x.astype(np.float64) @ values.T
    found, theirs = (
        error(multiply(level_backends(at), x, bind(level_backends(at))).astype(float), expected)
        for at in (level, "ggml")
    )
    assert found <= 1.1 * theirs + 1e-6


@pytest.mark.parametrize("level", FIXED)
def test_a_token_with_large_values_changes_no_other(
    level_backends: Callable[..., Any], load: Any, multiply: Callable[..., Any], level: str
) -> None:
    _, bind = load(normal(32, 256), GGMLType.F16)
    weight, x = bind(level_backends(level)), normal(12, 256, seed=1)
    alone = multiply(level_backends(level), x, weight)
    x[3] = halved(256)
    together = multiply(level_backends(level), x, weight)
    assert np.array_equal(np.delete(together, 3, 0), np.delete(alone, 3, 0))


@pytest.mark.parametrize("level", FIXED)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_weight_that_is_not_finite_affects_its_own_row(
    level_backends: Callable[..., Any],
    load: Any,
    multiply: Callable[..., Any],
    level: str,
    bad: float,
) -> None:
    weights = normal(20, 128)
    weights[7, 100] = bad
    _, bind = load(weights, GGMLType.F16)
    found = multiply(level_backends(level), normal(3, 128, seed=1), bind(level_backends(level)))
    assert not np.isfinite(found[:, 7]).any()
    assert np.isfinite(np.delete(found, 7, 1)).all()


@pytest.mark.parametrize("level", FIXED)
def test_the_largest_products_that_there_are_do_not_overflow(
    level_backends: Callable[..., Any], load: Any, multiply: Callable[..., Any], level: str
) -> None:
    """All numbers of a block the largest, of one sign: the sum is as large as it can become."""
    for many in (1, 8, BLOCK):
        weights = np.zeros((16, BLOCK), np.float32)
        weights[:, :many] = 65504
        values, bind = load(weights, GGMLType.F16)
        x = np.where(weights[:2] > 0, np.float32(3e30), np.float32(0))
        found = multiply(level_backends(level), x, bind(level_backends(level)))
        assert error(found.astype(float), x.astype(float) @ values.T) < 1e-4
