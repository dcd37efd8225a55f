"""F16 weights as integers of 16 bits: no less exact than ggml, whatever sizes meet in a block."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.kernels import Products, error, levels, normal

from tampu.ml import GGMLType

FIXED = [level for level in levels() if level.startswith("avx512")] or [None]
BLOCK = 64


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
    load: Any, products: Products, weights: Callable[..., Any], inputs: Callable[..., Any]
) -> None:
    values, bind = load(weights(48, 512), GGMLType.F16)
    x = inputs(20, 512, seed=1)
    expected = x.astype(np.float64) @ values.T
    (_, ggml), *own = products(bind, ["ggml", *FIXED])
    theirs = error(ggml(x).astype(float), expected)
    for level, multiply in own:
        assert error(multiply(x).astype(float), expected) <= 1.1 * theirs + 1e-6, level


def test_a_token_with_large_values_changes_no_other(load: Any, products: Products) -> None:
    _, bind = load(normal(32, 256), GGMLType.F16)
    for level, multiply in products(bind, FIXED):
        x = normal(12, 256, seed=1)
        alone = multiply(x)
        x[3] = halved(256)
        assert np.array_equal(np.delete(multiply(x), 3, 0), np.delete(alone, 3, 0)), level


def test_the_largest_products_that_there_are_do_not_overflow(load: Any, products: Products) -> None:
    """All numbers of a block the largest, of one sign: the sum is as large as it can become."""
    for many in (1, 8, BLOCK):
        weights = np.zeros((16, BLOCK), np.float32)
        weights[:, :many] = 65504
        values, bind = load(weights, GGMLType.F16)
        x = np.where(weights[:2] > 0, np.float32(3e30), np.float32(0))
        for level, multiply in products(bind, FIXED):
            assert error(multiply(x).astype(float), x.astype(float) @ values.T) < 1e-4, level
