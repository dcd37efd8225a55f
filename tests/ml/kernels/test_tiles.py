"""Many tokens by AMX tiles, the real ones and those in plain C, beside the other levels."""

from typing import Any

import numpy as np
from support.kernels import (
    KINDS,
    QUANTIZED,
    WITH_TILES,
    Products,
    each,
    error,
    levels,
    normal,
    random_blocks,
)

from tampu.ml import GGMLType

LEVELS = [level for level in levels() if level in WITH_TILES]
BRAIN = 2.0**-8  # the relative error of a number as BF16, at most twice this for a product


def test_the_tiles_in_plain_c_are_always_available() -> None:
    assert "amx_emulated" in LEVELS


@each(KINDS)
def test_the_error_is_at_most_that_of_vectors(
    load: Any, products: Products, kind: GGMLType
) -> None:
    """Vectors have a scale for 32 inputs, tiles eight bits for each number.

    Not so where eight bits of scale are all there is to round: one number in a block, or one size.
    """
    values, bind = load(normal(96, 1024), kind)
    plain = normal(40, 1024, seed=1)
    outliers = plain.copy()
    outliers[:, ::32] *= 1000
    heavy_tails = np.clip(plain / normal(*plain.shape, seed=7), -1e4, 1e4)
    found = dict(products(bind))
    for x in (plain, outliers, heavy_tails):
        expected = x.astype(np.float64) @ values.T
        for level in LEVELS:
            vectors = "avx512bf16" if level == "amx" else "portable"
            allowed = error(found[vectors](x), expected)
            if not kind.is_quantized:
                allowed = max(allowed, 3e-3 if kind is GGMLType.BF16 else 2e-5)
            assert error(found[level](x), expected) <= 1.05 * allowed + 1e-6, level


@each(KINDS)
def test_any_number_of_tokens_rows_and_inputs_works(
    load: Any, products: Products, kind: GGMLType
) -> None:
    """More inputs than a slice, strips that are not full, more tokens than are kept at once."""
    inputs = 1280 if kind.block_size == 256 else 1120
    values, bind = load(normal(56, inputs), kind)
    for level, multiply in products(bind, LEVELS):
        for tokens in (13, 16, 17, 32, 33, 48, 49, 70, 530):
            x = normal(tokens, inputs, seed=tokens)
            found = multiply(x)
            assert found.shape == (tokens, 56)
            assert error(found, x.astype(np.float64) @ values.T) < 6e-3, (level, tokens)


@each(QUANTIZED)
def test_every_bit_of_a_block_affects_the_result(
    load: Any, products: Products, kind: GGMLType
) -> None:
    x = np.random.default_rng(1).integers(-127, 128, (20, 512)).astype(np.float32)
    for scales in ([0.0], [6e-8, 6e-5], [65504.0], [0.0, 6e-8, 1.0, 65504.0]):
        blocks = random_blocks(kind, 48, 512, np.array(scales, np.float16))
        values, bind = load.stored(blocks, kind)
        size = np.abs(x).astype(np.float64) @ np.abs(values).T
        for level, multiply in products(bind, LEVELS):
            wrong = np.abs(multiply(x) - x.astype(np.float64) @ values.T)
            assert (wrong <= BRAIN * size).all(), (level, scales)


@each(KINDS)
def test_amx_instructions_match_those_in_plain_c(
    load: Any, products: Products, kind: GGMLType
) -> None:
    """On a CPU without AMX it is the plain C twice: the levels that there are."""
    _, bind = load(normal(40, 512), kind)
    x = normal(50, 512, seed=1)
    first, *others = (multiply(x) for _, multiply in products(bind, LEVELS))
    assert all(error(other, first) < 1e-5 for other in others)
