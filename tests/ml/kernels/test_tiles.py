"""Many tokens by AMX tiles, the real ones and those in plain C, beside the other levels."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.kernels import (
    KINDS,
    QUANTIZED,
    TILE_TOKENS,
    WITH_TILES,
    error,
    levels,
    normal,
    random_blocks,
)

from tampu.ml import GGMLType

LEVELS = [level for level in levels() if level in WITH_TILES]
BY_NAME: dict[str, Any] = {"ids": lambda kind: kind.name}
BRAIN = 2.0**-8  # the relative error of a number as BF16, at most twice this for a product


def test_the_tiles_in_plain_c_are_always_available() -> None:
    assert "amx_emulated" in LEVELS


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", KINDS, **BY_NAME)
@pytest.mark.parametrize("pattern", ["normal", "outliers", "heavy tails"])
def test_the_error_is_at_most_that_of_vectors(
    level_backends: Callable[..., Any],
    load: Any,
    multiply: Callable[..., Any],
    kind: GGMLType,
    level: str,
    pattern: str,
) -> None:
    """Vectors have a scale for 32 inputs, tiles eight bits for each number.

    Not so where eight bits of scale are all there is to round: one number in a block, or one size.
    """
    values, bind = load(normal(96, 1024), kind)
    x = normal(40, 1024, seed=1)
    if pattern == "outliers":
        x[:, ::32] *= 1000
    elif pattern == "heavy tails":
        x = np.clip(x / normal(*x.shape, seed=7), -1e4, 1e4)
    expected = x.astype(np.float64) @ values.T
    vectors = "avx512bf16" if level == "amx" else "portable"
    ours = error(multiply(level_backends(level), x, bind(level_backends(level))), expected)
    theirs = error(multiply(level_backends(vectors), x, bind(level_backends(vectors))), expected)
    allowed = theirs if kind.is_quantized else max(theirs, 3e-3 if kind is GGMLType.BF16 else 2e-5)
    assert ours <= 1.05 * allowed + 1e-6


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", KINDS, **BY_NAME)
@pytest.mark.parametrize("tokens", [13, 16, 17, 32, 33, 48, 49, 70, 530])
def test_any_number_of_tokens_rows_and_inputs_works(
    level_backends: Callable[..., Any],
    load: Any,
    multiply: Callable[..., Any],
    kind: GGMLType,
    level: str,
    tokens: int,
) -> None:
    """More inputs than a slice, strips that are not full, more tokens than are kept at once."""
    inputs = 1280 if kind.block_size == 256 else 1120
    values, bind = load(normal(56, inputs), kind)
    x = normal(tokens, inputs, seed=tokens)
    found = multiply(level_backends(level), x, bind(level_backends(level)))
    assert found.shape == (tokens, 56)
    assert error(found, x.astype(np.float64) @ values.T) < 6e-3


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", QUANTIZED, **BY_NAME)
@pytest.mark.parametrize("scales", [[0.0], [6e-8, 6e-5], [65504.0], [0.0, 6e-8, 1.0, 65504.0]])
def test_every_bit_of_a_block_affects_the_result(
    level_backends: Callable[..., Any],
    load: Any,
    multiply: Callable[..., Any],
    kind: GGMLType,
    level: str,
    scales: list[float],
) -> None:
    blocks = random_blocks(kind, 48, 512, np.array(scales, np.float16))
    values, bind = load.stored(blocks, kind)
    x = np.random.default_rng(1).integers(-127, 128, (20, 512)).astype(np.float32)
    found = multiply(level_backends(level), x, bind(level_backends(level)))
    size = np.abs(x).astype(np.float64) @ np.abs(values).T
    assert (np.abs(found - x.astype(np.float64) @ values.T) <= BRAIN * size).all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", KINDS, **BY_NAME)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_token_that_is_not_finite_affects_itself_only(
    level_backends: Callable[..., Any],
    load: Any,
    multiply: Callable[..., Any],
    kind: GGMLType,
    level: str,
    bad: float,
) -> None:
    _, bind = load(normal(16, 256), kind)
    weight, x = bind(level_backends(level)), normal(TILE_TOKENS + 7, 256, seed=1)
    good = multiply(level_backends(level), x, weight)
    x[2, 77] = bad
    found = multiply(level_backends(level), x, weight)
    assert not np.isfinite(found[2]).any()
    assert np.array_equal(np.delete(found, 2, 0), np.delete(good, 2, 0))


@pytest.mark.parametrize("kind", KINDS, **BY_NAME)
def test_amx_instructions_match_those_in_plain_c(
    level_backends: Callable[..., Any],
    load: Any,
    multiply: Callable[..., Any],
    kind: GGMLType,
) -> None:
    """On a CPU without AMX it is the plain C twice: the levels that there are."""
    _, bind = load(normal(40, 512), kind)
    x = normal(50, 512, seed=1)
    first, *others = (
        multiply(level_backends(level), x, bind(level_backends(level))) for level in LEVELS
    )
    assert all(error(other, first) < 1e-5 for other in others)
