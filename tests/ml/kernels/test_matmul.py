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
    error,
    levels,
    normal,
    random_blocks,
)

from tampu.ml import GGMLType
from tampu.ml.buffer_types import WeightUse
from tampu.ml.kernels.matmul import PackedWeight


def rounding(kind: GGMLType, level: str) -> float:
    """The error that a level may have: one of them rounds activations as the weights are."""
    if kind is GGMLType.F16 and level.startswith(("avx512", "amx")):
        return 2e-4
    return 5e-3 if kind is GGMLType.BF16 and level in (*WITH_TILES, "avx512bf16") else 1e-5


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_error_is_at_most_ggmls(
    level_backends: Callable[..., Any],
    load: Any,
    multiply: Callable[..., Any],
    kind: GGMLType,
    level: str,
) -> None:
    """ggml rounds activations as these kernels do; both are compared with float64."""
    values, bind = load(normal(80, 1024), kind)
    own, ggml = bind(level_backends(level)), bind(level_backends("ggml"))
    assert isinstance(own.packed, PackedWeight)
    assert ggml.packed is None
    for tokens in (1, 3, 16, 50):
        x = normal(tokens, 1024, seed=tokens)
        expected = x.astype(np.float64) @ values.T
        theirs = error(multiply(level_backends("ggml"), x, ggml), expected)
        assert error(multiply(level_backends(level), x, own), expected) <= 1.1 * theirs + 1e-6


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 100])
def test_any_number_of_rows_and_tokens_works(
    level_backends: Callable[..., Any],
    load: Any,
    multiply: Callable[..., Any],
    kind: GGMLType,
    level: str,
    rows: int,
) -> None:
    values, bind = load(normal(rows, 256), kind)
    weight = bind(level_backends(level))
    for tokens in (1, 2, 4, 5, 7, 12, 13, 24, 25, 31):
        x = normal(tokens, 256, seed=tokens)
        found = multiply(level_backends(level), x, weight)
        assert found.shape == (tokens, rows)
        size = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(values, axis=1)
        assert np.abs((found - x.astype(np.float64) @ values.T) / size).max() < 2e-2


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("kind", [GGMLType.F16, GGMLType.BF16], ids=lambda kind: kind.name)
@pytest.mark.parametrize("inputs", [16, 48, 4304])
def test_floats_work_in_any_multiple_of_sixteen(
    level_backends: Callable[..., Any],
    load: Any,
    multiply: Callable[..., Any],
    kind: GGMLType,
    level: str,
    inputs: int,
) -> None:
    values, bind = load(normal(20, inputs), kind)
    weight, x = bind(level_backends(level)), normal(26, inputs, seed=1)
    assert isinstance(weight.packed, PackedWeight)
    found = multiply(level_backends(level), x, weight)
    assert error(found, x.astype(np.float64) @ values.T) < rounding(kind, level)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize(
    "kind", [kind for kind in QUANTIZED if kind.block_size == 32], ids=lambda kind: kind.name
)
@pytest.mark.parametrize("inputs", [32, 96, 1120])
def test_any_number_of_blocks_works(
    level_backends: Callable[..., Any],
    load: Any,
    multiply: Callable[..., Any],
    kind: GGMLType,
    level: str,
    inputs: int,
) -> None:
    values, bind = load(normal(20, inputs), kind)
    weight, x = bind(level_backends(level)), normal(14, inputs, seed=1)
    assert isinstance(weight.packed, PackedWeight)
    found = multiply(level_backends(level), x, weight)
    assert error(found, x.astype(np.float64) @ values.T) < 2e-2


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_token_does_not_depend_on_its_neighbours(
    level_backends: Callable[..., Any],
    load: Any,
    multiply: Callable[..., Any],
    kind: GGMLType,
    level: str,
) -> None:
    _, bind = load(normal(32, 512), kind)
    weight, x = bind(level_backends(level)), normal(29, 512, seed=1)
    together = multiply(level_backends(level), x, weight)
    few = x[:12] if level in WITH_TILES else x
    alike = multiply(level_backends(level), few, weight)
    for token in range(0, len(few), 4):
        alone = multiply(level_backends(level), x[token : token + 1], weight)
        assert np.array_equal(alone[0], alike[token])
    for first in range(29 - TILE_TOKENS):  # by tiles too: as long as they are enough for them
        others = multiply(level_backends(level), x[first : first + TILE_TOKENS], weight)
        assert np.array_equal(others, together[first : first + TILE_TOKENS])


@pytest.mark.parametrize("threads", [2, 3, 5])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_number_of_threads_changes_no_bit(
    level_backends: Callable[..., Any],
    load: Any,
    multiply: Callable[..., Any],
    kind: GGMLType,
    threads: int,
) -> None:
    _, bind = load(normal(200, 256), kind)
    one, many = level_backends(None), level_backends(None, threads)
    own, others = bind(one), bind(many)
    for tokens in (1, 5, 40):
        x = normal(tokens, 256, seed=1)
        assert np.array_equal(multiply(many, x, others), multiply(one, x, own))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_all_levels_agree(
    level_backends: Callable[..., Any],
    load: Any,
    multiply: Callable[..., Any],
    kind: GGMLType,
) -> None:
    _, bind = load(normal(33, 512), kind)
    x = normal(9, 512, seed=1)
    found = {at: multiply(level_backends(at), x, bind(level_backends(at))) for at in levels()}
    for level, other in found.items():
        assert error(other, found["portable"]) < rounding(kind, level)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("kind", QUANTIZED, ids=lambda kind: kind.name)
def test_every_stored_byte_affects_the_result(
    level_backends: Callable[..., Any],
    load: Any,
    multiply: Callable[..., Any],
    kind: GGMLType,
    level: str,
) -> None:
    scales = np.linspace(0.1, 2.0, 50).astype(np.float16)
    values, bind = load.stored(random_blocks(kind, 48, 512, scales), kind)
    weight = bind(level_backends(level))
    # Whole numbers up to 127 are quantized without error.
    x = np.random.default_rng(1).integers(-127, 128, (6, 512)).astype(np.float32)
    x[:, ::32] = 127.0
    found = multiply(level_backends(level), x, weight)
    expected = x.astype(np.float64) @ values.T
    size = np.abs(x).astype(np.float64) @ np.abs(values).T
    assert (np.abs(found - expected) / size).max() < 1e-5


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_zeros_and_the_smallest_numbers_give_zero(
    level_backends: Callable[..., Any],
    load: Any,
    multiply: Callable[..., Any],
    kind: GGMLType,
    level: str,
) -> None:
    _, bind = load(normal(16, 256), kind)
    weight = bind(level_backends(level))
    x = np.zeros((3, 256), np.float32)
    x[1] = 1e-40
    x[2] = np.finfo(np.float32).smallest_subnormal
    assert np.abs(multiply(level_backends(level), x, weight)).max() < 1e-35


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("scale", [1e-20, 1e-6, 1e6, 1e30])
def test_the_scale_of_the_activations_does_not_matter(
    level_backends: Callable[..., Any],
    load: Any,
    multiply: Callable[..., Any],
    kind: GGMLType,
    level: str,
    scale: float,
) -> None:
    values, bind = load(normal(16, 256), kind)
    weight = bind(level_backends(level))
    x = (normal(2, 256, seed=1).astype(np.float64) * scale).astype(np.float32)
    found = multiply(level_backends(level), x, weight)
    assert error(found.astype(np.float64), x.astype(np.float64) @ values.T) < 2e-2


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
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
    weight, x = bind(level_backends(level)), normal(5, 256, seed=1)
    good = multiply(level_backends(level), x, weight)
    x[2, 77] = bad
    found = multiply(level_backends(level), x, weight)
    assert not np.isfinite(found[2]).any()
    assert np.array_equal(np.delete(found, 2, 0), np.delete(good, 2, 0))


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
