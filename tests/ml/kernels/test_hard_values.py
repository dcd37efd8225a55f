"""Products of values that are hard to round or no numbers, for each type and level.

What is expected is float64; ggml's own kernels, on the same values, say how large an error may be.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.kernels import KINDS, QUANTIZED, error, levels, normal, random_blocks

from tampu.ml import GGMLType

BY_NAME: dict[str, Any] = {"ids": lambda kind: kind.name}
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


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("kind", KINDS, **BY_NAME)
def test_the_error_on_hard_activations_is_at_most_ggmls(
    level_backends: Callable[..., Any],
    load: Any,
    multiply: Callable[..., Any],
    kind: GGMLType,
    level: str,
) -> None:
    values, bind = load(normal(200, INPUTS), kind)
    own, ggml = bind(level_backends(level)), bind(level_backends("ggml"))
    for pattern in PATTERNS:
        x = pattern(normal(9, INPUTS, seed=1))
        expected = x.astype(np.float64) @ values.T
        theirs = error(multiply(level_backends("ggml"), x, ggml), expected)
        ours = error(multiply(level_backends(level), x, own), expected)
        assert ours <= 1.1 * theirs + 1e-6, pattern.__name__


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("kind", QUANTIZED, **BY_NAME)
def test_scales_of_weights_may_be_zero_subnormal_or_the_largest(
    level_backends: Callable[..., Any],
    load: Any,
    multiply: Callable[..., Any],
    kind: GGMLType,
    level: str,
) -> None:
    x = np.random.default_rng(1).integers(-127, 128, (5, INPUTS)).astype(np.float32)
    x[:, ::32] = 127.0  # whole numbers are quantized without error
    for scales in ([0.0], [6e-8], [6e-8, 6e-5], [65504.0], [0.0, 6e-8, 1.0, 65504.0]):
        blocks = random_blocks(kind, 40, INPUTS, np.array(scales, np.float16))
        values, bind = load.stored(blocks, kind)
        found = multiply(level_backends(level), x, bind(level_backends(level)))
        size = np.abs(x).astype(np.float64) @ np.abs(values).T
        assert (np.abs(found - x.astype(np.float64) @ values.T) <= 1e-5 * size).all()


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("kind", [GGMLType.F16, GGMLType.BF16], **BY_NAME)
def test_floats_may_be_subnormal_or_the_largest(
    level_backends: Callable[..., Any],
    load: Any,
    multiply: Callable[..., Any],
    kind: GGMLType,
    level: str,
) -> None:
    """BF16 products of CPUs take subnormal numbers as zeros, ggml's too."""
    limits = {GGMLType.F16: (6e-8, 65504.0), GGMLType.BF16: (1e-40, 1e37)}
    for scale in limits[kind]:
        values, bind = load(np.sign(normal(40, INPUTS)) * np.float32(scale), kind)
        x = normal(5, INPUTS, seed=1) / 64
        found = multiply(level_backends(level), x, bind(level_backends(level)))
        size = np.abs(x).astype(np.float64) @ np.abs(values).T
        assert (np.abs(found - x.astype(np.float64) @ values.T) <= 2e-3 * size + 1e-38).all()


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("kind", KINDS, **BY_NAME)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_weight_that_is_not_finite_affects_only_its_row_as_in_ggml(
    level_backends: Callable[..., Any],
    load: Any,
    multiply: Callable[..., Any],
    kind: GGMLType,
    level: str,
    bad: float,
) -> None:
    stored = random_blocks(kind, 20, INPUTS, np.ones(1, np.float16)) if kind.is_quantized else None
    if stored is None:
        stored = np.ones((20, 2 * INPUTS), np.uint8)
    good = load.stored(stored, kind)[1]
    spoilt = stored.copy()
    if kind is GGMLType.MXFP4:
        spoilt[3, 0] = 255  # no number, in the format; ggml takes it as 2 to the 127th
    elif kind is GGMLType.BF16:
        spoilt[3, :4] = np.array([bad], np.float32).view(np.uint8)  # its upper half is BF16
    else:
        at = 208 if kind is GGMLType.Q6_K else 0
        spoilt[3, at : at + 2] = np.array([bad], np.float16).view(np.uint8)
    bind = load.stored(spoilt, kind)[1]
    x = normal(5, INPUTS, seed=1)
    plain = multiply(level_backends(level), x, good(level_backends(level)))
    found = multiply(level_backends(level), x, bind(level_backends(level)))
    theirs = multiply(level_backends("ggml"), x, bind(level_backends("ggml")))
    assert not np.isfinite(found[:, 3]).any()
    if kind is not GGMLType.MXFP4:
        assert not np.isfinite(theirs[:, 3]).any()
    assert np.array_equal(np.delete(found, 3, 1), np.delete(plain, 3, 1))


@pytest.mark.parametrize("kind", KINDS, **BY_NAME)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_results_that_are_not_finite_in_ggml_are_not_finite(
    level_backends: Callable[..., Any],
    load: Any,
    multiply: Callable[..., Any],
    kind: GGMLType,
    bad: float,
) -> None:
    """ggml loses a NaN before products with quantized weights: what it gives is then any number."""
    _, bind = load(normal(16, INPUTS), kind)
    x = normal(3, INPUTS, seed=1)
    x[1, 77] = bad
    ours, theirs = (
        multiply(level_backends(level), x, bind(level_backends(level))) for level in (None, "ggml")
    )
    assert not (np.isfinite(ours) & ~np.isfinite(theirs)).any()
    assert not np.isfinite(ours[1]).any()
    assert np.isfinite(ours[::2]).all()
