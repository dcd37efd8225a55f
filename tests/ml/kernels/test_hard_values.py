"""Products of values that are hard to round or no numbers, for each type and level.

What is expected is float64; ggml's own kernels, on the same values, say how large an error may be.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from support.kernels import KINDS, QUANTIZED, Products, each, error, levels, normal, random_blocks

from tampu.ml import GGMLType

INPUTS = 512


def outliers(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    x[:, ::32] *= 1000
    return x


def mostly_zeros(x: Any) -> Any:
    x[:, np.arange(INPUTS) % 20 != 0] = 0
    return x


def blocks_of_all_sizes(x: Any) -> Any:
    """Up to what ggml can: with larger ones its half floats become infinite."""
    return x * np.repeat(10.0 ** np.arange(-12, 4), 32).astype(np.float32)


def heavy_tails(x: Any) -> Any:
    return np.clip(x / normal(*x.shape, seed=7), -1e4, 1e4)


def one_size(x: Any) -> Any:
    return np.sign(x)


def all_equal(x: Any) -> Any:
    return np.full_like(x, 0.3)


def subnormal_beside_normal(x: Any) -> Any:
    x[:, ::2] *= np.float32(1e-40)
    return x


PATTERNS = (
    *(outliers, mostly_zeros, blocks_of_all_sizes, heavy_tails),
    *(one_size, all_equal, subnormal_beside_normal),
)


NOT_FINITE = (np.nan, np.inf, -np.inf)


@each(KINDS)
def test_the_error_on_hard_activations_is_at_most_ggmls(
    load: Any, products: Products, kind: GGMLType
) -> None:
    values, bind = load(normal(200, INPUTS), kind)
    (_, ggml), *own = products(bind, ["ggml", *levels()])
    for pattern in PATTERNS:
        x = pattern(normal(9, INPUTS, seed=1))
        expected = x.astype(np.float64) @ values.T
        theirs = error(ggml(x), expected)
        for level, multiply in own:
            assert error(multiply(x), expected) <= 1.1 * theirs + 1e-6, (pattern.__name__, level)


@each(QUANTIZED)
def test_every_stored_byte_affects_the_result_with_scales_of_any_size(
    load: Any, products: Products, kind: GGMLType
) -> None:
    """Zero, subnormal and the largest scales, and common ones."""
    x = np.random.default_rng(1).integers(-127, 128, (5, INPUTS)).astype(np.float32)
    x[:, ::32] = 127.0  # whole numbers up to 127 are quantized without error
    several = ([6e-8, 6e-5], [0.0, 6e-8, 1.0, 65504.0], [*np.linspace(0.1, 2, 50)])
    for scales in ([0.0], [6e-8], [65504.0], *several):
        blocks = random_blocks(kind, 48, INPUTS, np.array(scales, np.float16))
        values, bind = load.stored(blocks, kind)
        size = np.abs(x).astype(np.float64) @ np.abs(values).T
        for level, multiply in products(bind):
            wrong = np.abs(multiply(x) - x.astype(np.float64) @ values.T)
            assert (wrong <= 1e-5 * size).all(), (level, scales)


@each([GGMLType.F16, GGMLType.BF16])
def test_floats_may_be_subnormal_or_the_largest(
    load: Any, products: Products, kind: GGMLType
) -> None:
    """BF16 products of CPUs take subnormal numbers as zeros, ggml's too."""
    limits = {GGMLType.F16: (6e-8, 65504.0), GGMLType.BF16: (1e-40, 1e37)}
    x = normal(5, INPUTS, seed=1) / 64
    for scale in limits[kind]:
        values, bind = load(np.sign(normal(40, INPUTS)) * np.float32(scale), kind)
        size = np.abs(x).astype(np.float64) @ np.abs(values).T
        for level, multiply in products(bind):
            wrong = np.abs(multiply(x) - x.astype(np.float64) @ values.T)
            assert (wrong <= 2e-3 * size + 1e-38).all(), (level, scale)


@each(KINDS)
def test_a_weight_that_is_not_finite_affects_only_its_row_as_in_ggml(
    load: Any, products: Products, kind: GGMLType
) -> None:
    stored = np.ones((20, 2 * INPUTS), np.uint8)
    if kind.is_quantized:
        stored = random_blocks(kind, 20, INPUTS, np.ones(1, np.float16))
    good = load.stored(stored, kind)[1]
    x = normal(5, INPUTS, seed=1)
    plain = {level: multiply(x) for level, multiply in products(good)}
    for bad in NOT_FINITE:
        bind = load.stored(spoil(stored, kind, bad), kind)[1]
        for level, multiply in products(bind, ["ggml", *levels()]):
            found = multiply(x)
            if kind is not GGMLType.MXFP4 or level != "ggml":
                assert not np.isfinite(found[:, 3]).any(), (level, bad)
            if level != "ggml":
                assert np.array_equal(np.delete(found, 3, 1), np.delete(plain[level], 3, 1)), level


def spoil(stored: npt.NDArray[np.uint8], kind: GGMLType, bad: float) -> npt.NDArray[np.uint8]:
    """Return stored rows with a number that is not finite in the fourth."""
    spoilt = stored.copy()
    if kind is GGMLType.MXFP4:
        spoilt[3, 0] = 255  # no number, in the format; ggml takes it as 2 to the 127th
    elif kind is GGMLType.BF16:
        spoilt[3, :4] = np.array([bad], np.float32).view(np.uint8)  # its upper half is BF16
    else:
        at = 208 if kind is GGMLType.Q6_K else 0
        spoilt[3, at : at + 2] = np.array([bad], np.float16).view(np.uint8)
    return spoilt


@each(KINDS)
def test_results_that_are_not_finite_in_ggml_are_not_finite(
    load: Any, products: Products, kind: GGMLType
) -> None:
    """ggml loses a NaN before products with quantized weights: what it gives is then any number."""
    _, bind = load(normal(16, INPUTS), kind)
    x = normal(3, INPUTS, seed=1)
    for bad in NOT_FINITE:
        x[1, 77] = bad
        theirs, ours = (multiply(x) for _, multiply in products(bind, ["ggml", levels()[-1]]))
        assert not (np.isfinite(ours) & ~np.isfinite(theirs)).any()
        assert not np.isfinite(ours[1]).any()
        assert np.isfinite(ours[::2]).all()
