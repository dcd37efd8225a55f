"""Products with packed weights, against float64 and against ggml's own, for each type and level."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.kernels import (
    KINDS,
    QUANTIZED,
    TILE_TOKENS,
    WITH_TILES,
    Products,
    each,
    error,
    levels,
    normal,
)

from tampu.ml import GGMLType
from tampu.ml.buffer_types import WeightUse
from tampu.ml.convolution import map_patches, project_patches
from tampu.ml.quantize import quantize

FLOATS = [GGMLType.F16, GGMLType.BF16]


def rounding(kind: GGMLType, level: str) -> float:
    """The error that a level may have: one of them rounds activations as the weights are."""
    if kind is GGMLType.F16 and level.startswith(("avx512", "amx")):
        return 2e-4
    return 5e-3 if kind is GGMLType.BF16 and level in (*WITH_TILES, "avx512bf16") else 1e-5


@each(KINDS)
def test_the_error_is_at_most_ggmls(load: Any, products: Products, kind: GGMLType) -> None:
    """ggml rounds activations as these kernels do; both are compared with float64."""
    values, bind = load(normal(80, 1024), kind)
    (_, ggml), *own = products(bind, ["ggml", *levels()])
    for tokens in (1, 3, 16, 50):
        x = normal(tokens, 1024, seed=tokens)
        expected = x.astype(np.float64) @ values.T
        theirs = error(ggml(x), expected)
        for level, multiply in own:
            assert error(multiply(x), expected) <= 1.1 * theirs + 1e-6, (level, tokens)


@each(KINDS)
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 100])
def test_any_number_of_rows_and_tokens_works(
    load: Any, products: Products, kind: GGMLType, rows: int
) -> None:
    values, bind = load(normal(rows, 256), kind)
    for level, multiply in products(bind):
        for tokens in (1, 2, 4, 5, 7, 12, 13, 24, 25, 31):
            x = normal(tokens, 256, seed=tokens)
            found = multiply(x)
            assert found.shape == (tokens, rows)
            size = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(values, axis=1)
            wrong = np.abs((found - x.astype(np.float64) @ values.T) / size).max()
            assert wrong < 2e-2, (level, tokens)


@pytest.mark.parametrize(
    ("kind", "inputs"),
    [
        *((kind, inputs) for kind in FLOATS for inputs in (16, 48, 4304)),
        *((kind, n) for kind in QUANTIZED if kind.block_size == 32 for n in (32, 96, 1120)),
    ],
)
def test_any_number_of_blocks_works(
    load: Any, products: Products, kind: GGMLType, inputs: int
) -> None:
    values, bind = load(normal(20, inputs), kind)
    x = normal(26, inputs, seed=1)
    for level, multiply in products(bind):
        limit = rounding(kind, level) if kind in FLOATS else 2e-2
        assert error(multiply(x), x.astype(np.float64) @ values.T) < limit, level


@each(KINDS)
def test_a_token_does_not_depend_on_its_neighbours(
    load: Any, products: Products, kind: GGMLType
) -> None:
    _, bind = load(normal(32, 512), kind)
    x = normal(40, 512, seed=1)
    for level, multiply in products(bind):
        together = multiply(x)
        few = x[: 31 if kind in QUANTIZED else 12] if level in WITH_TILES else x
        alike = multiply(few)
        for token in range(0, len(few), 4):
            assert np.array_equal(multiply(x[token : token + 1])[0], alike[token]), level
        for count in (5, 8, 9, 13, 16, 20, 21):  # panels of all kinds
            found = multiply(few[:count])
            assert np.array_equal(found, alike[: len(found)]), (level, count)
        for first in range(40 - TILE_TOKENS):  # by tiles too: as long as they are enough for them
            some = slice(first, first + TILE_TOKENS)
            assert np.array_equal(multiply(x[some]), together[some]), level


@each(KINDS)
def test_the_number_of_threads_changes_no_bit(
    level_backends: Callable[..., Any], load: Any, multiply: Callable[..., Any], kind: GGMLType
) -> None:
    _, bind = load(normal(200, 256), kind)
    one, *more = ((level_backends(None, n), bind(level_backends(None, n))) for n in (1, 2, 3, 5))
    for tokens in (1, 5, 40):
        x = normal(tokens, 256, seed=1)
        found = multiply(one[0], x, one[1])
        for backend, weight in more:
            assert np.array_equal(multiply(backend, x, weight), found)


@each(KINDS)
def test_all_levels_agree(load: Any, products: Products, kind: GGMLType) -> None:
    _, bind = load(normal(33, 512), kind)
    found = {level: multiply(normal(9, 512, seed=1)) for level, multiply in products(bind)}
    for level, other in found.items():
        assert error(other, found["portable"]) < rounding(kind, level), level


@each(KINDS)
def test_the_scale_of_the_activations_does_not_matter(
    load: Any, products: Products, kind: GGMLType
) -> None:
    """The smallest numbers give zero."""
    values, bind = load(normal(16, 256), kind)
    smallest = np.zeros((3, 256), np.float32)
    smallest[1] = 1e-40
    smallest[2] = np.finfo(np.float32).smallest_subnormal
    for level, multiply in products(bind):
        assert np.abs(multiply(smallest)).max() < 1e-35, level
        for scale in (1e-20, 1e-6, 1e6, 1e30):
            x = (normal(2, 256, seed=1).astype(np.float64) * scale).astype(np.float32)
            found = multiply(x).astype(np.float64)
            assert error(found, x.astype(np.float64) @ values.T) < 2e-2, (level, scale)


@each(KINDS)
@pytest.mark.parametrize("tokens", [5, TILE_TOKENS + 7])
def test_a_token_that_is_not_finite_affects_itself_only(
    load: Any, products: Products, kind: GGMLType, tokens: int
) -> None:
    _, bind = load(normal(16, 256), kind)
    for level, multiply in products(bind):
        x = normal(tokens, 256, seed=1)
        good = multiply(x)
        for bad in (np.nan, np.inf, -np.inf):
            x[2, 77] = bad
            found = multiply(x)
            assert not np.isfinite(found[2]).any(), (level, bad)
            assert np.array_equal(np.delete(found, 2, 0), np.delete(good, 2, 0)), (level, bad)


def test_products_of_one_input_share_its_packed_form(
    level_backends: Callable[..., Any], load: Any
) -> None:
    values, bind = load(normal(64, 256), GGMLType.Q4_0)
    others, bind_other = load(normal(32, 256, seed=1), GGMLType.Q6_K)
    backend = level_backends(None)
    context = backend.context(200)
    x = context.input("x", (3, 256), GGMLType.F32)
    first, second = bind(backend), bind_other(backend)
    outputs = [context.output(x.linear(weight)) for weight in [first, second] * 40]
    assert [pack.uses for pack in x.activations.values()] == [80 - 60]
    data = normal(3, 256, seed=2)
    found = backend.compute(context, [(x, data)], outputs).outputs
    context.close()
    wanted = [data.astype(np.float64) @ matrix.T for matrix in (values, others)] * 40
    for result, expected in zip(found, wanted, strict=True):
        assert error(result, expected) < 2e-2


def test_a_graph_is_computed_again_with_other_data(
    level_backends: Callable[..., Any], load: Any
) -> None:
    values, bind = load(normal(64, 256), GGMLType.Q8_0)
    backend = level_backends(None)
    weight = bind(backend)
    context = backend.context(16)
    x = context.input("x", (2, 256), GGMLType.F32)
    y = context.output(x.linear(weight))
    for seed in range(3):
        data = normal(2, 256, seed=seed)
        found = backend.compute(context, [(x, data)], [y]).outputs[0]
        assert error(found, data.astype(np.float64) @ values.T) < 2e-2
    context.close()


def test_batches_of_more_dimensions_are_multiplied_row_by_row(
    level_backends: Callable[..., Any], load: Any, multiply: Callable[..., Any]
) -> None:
    values, bind = load(normal(32, 256), GGMLType.Q4_K)
    x = normal(2, 3, 5, 256, seed=1)
    found = multiply(level_backends(None), x, bind(level_backends(None)))
    assert found.shape == (2, 3, 5, 32)
    assert error(found, x.astype(np.float64) @ values.T) < 2e-2


def test_rows_of_a_packed_weight_can_still_be_looked_up(
    level_backends: Callable[..., Any], load: Any
) -> None:
    values, bind = load(normal(40, 256), GGMLType.Q6_K, (WeightUse.ROWS, WeightUse.PRODUCT))
    backend = level_backends(None)
    weight = bind(backend)
    context = backend.context(16)
    indices = context.input("rows", (2,), GGMLType.I32)
    looked_up = context.output(weight.rows(indices))
    found = backend.compute(context, [(indices, np.array([39, 3], np.int32))], [looked_up])
    context.close()
    np.testing.assert_allclose(found.outputs[0], values[[39, 3]], rtol=1e-6)
    assert weight.packed is not None


@each(KINDS)
@pytest.mark.parametrize("count", [1, 16, 40, 80])
def test_the_first_outputs_are_computed_alone(
    level_backends: Callable[..., Any], load: Any, kind: GGMLType, count: int
) -> None:
    _, bind = load(normal(80, 256), kind)
    for level in (None, "ggml"):
        backend = level_backends(level)
        weight = bind(backend)
        x = normal(3, 256, seed=1)
        context = backend.context(16)
        given = context.input("x", x.shape, GGMLType.F32)
        outputs = [context.output(given.linear(weight, n)) for n in (None, count)]
        every, first = backend.compute(context, [(given, x)], outputs).outputs
        context.close()
        assert first.shape[1] in (count, 80)  # ggml's own layouts have no first rows
        assert error(first[:, :count], every[:, :count]) < 1e-2
        assert first.shape[1] == count or weight.packed is None


@each(FLOATS)
@pytest.mark.parametrize("channels", [1, 16])  # rows of 9 inputs have no packed layout
def test_the_kernel_of_a_convolution_is_multiplied_as_a_matrix(
    load: Any, level_backends: Callable[..., Any], kind: GGMLType, channels: int
) -> None:
    kernel = normal(24, channels * 9).reshape(24, channels, 3, 3)
    stored = quantize(kernel, kind).reshape(24, channels, 3, -1)
    values, bind = load.stored(stored, kind, (WeightUse.CONVOLUTION,))
    picture = normal(channels, 7 * 9, seed=1).reshape(channels, 7, 9)
    expected = convolved(picture.astype(np.float64), values.reshape(kernel.shape))
    for level in ("ggml", *levels()):
        backend = level_backends(level)
        weight = bind(backend)
        assert (weight.packed is not None) is (level != "ggml" and channels == 16)
        context = backend.context(64)
        given = context.input("x", picture.shape, GGMLType.F32)
        y = context.output(project_patches(map_patches(given, weight, 2, 1), weight))
        found = backend.compute(context, [(given, picture)], [y]).outputs[0]
        context.close()
        assert found.shape == (4, 5, 24)
        assert error(found, expected) < rounding(GGMLType.BF16, "amx"), level


def convolved(x: Any, kernel: Any) -> Any:
    """Return a convolution with stride 2 and a border of zeros, (rows, columns, outputs)."""
    filled = np.pad(x, ((0, 0), (1, 1), (1, 1)))
    under = np.lib.stride_tricks.sliding_window_view(filled, (3, 3), axis=(1, 2))[:, ::2, ::2]
    return np.einsum("crshw,ochw->rso", under, kernel)
