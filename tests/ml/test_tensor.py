"""Operations on tensors against NumPy."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.graphs import floats, integers
from support.reference import gelu, rope, silu, softmax

from tampu.errors import ShapeError
from tampu.ml import Backend, Context, GGMLType, RopeMode, RopeScaling, Tensor, attention
from tampu.ml.attention import flash_attention
from tampu.ml.gates import gelu_gate, silu_gate
from tampu.ml.rotary import Rope

HALVES, NEIGHBOURS = RopeMode.HALVES, RopeMode.INTERLEAVED


def close(
    found: Any,
    expected: npt.NDArray[Any] | npt.NDArray[np.float32] | npt.NDArray[np.float64],
    *,
    atol: float = 1e-5,
) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=atol)


# What a tensor is


def test_a_tensor_names_its_shape_slowest_dimension_first(context: Context) -> None:
    x = context.input("x", (2, 3, 5), GGMLType.F32)
    assert x.shape == (2, 3, 5)
    assert x.strides == (60, 20, 4)
    assert x.size_bytes == 120
    assert x.is_contiguous
    assert repr(x) == "Tensor('x', (2, 3, 5), F32)"


def test_a_quantized_tensor_counts_its_blocks(context: Context) -> None:
    x = context.input("x", (2, 64), GGMLType.Q8_0)
    assert x.size_bytes == 2 * 2 * 34


# Arithmetic


@pytest.mark.parametrize(
    ("shape", "other"),
    [
        ((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 3), (1, 3)), ((2, 3), (2, 1)), ((2, 3), (1,)),
        ((4, 2, 3), (2, 3)), ((2, 4, 2, 3), (4, 1, 3)),
    ],
)  # fmt: skip
def test_sums_and_products_repeat_the_second_as_numpy_does(
    compute: Callable[..., Any], shape: tuple[int, ...], other: tuple[int, ...]
) -> None:
    x, y = floats(*shape), floats(*other, seed=1)
    total, product = compute(lambda x, y: (x + y, x * y), x, y)
    close(total, x + y)
    close(product, x * y)


def test_a_sum_repeats_whole_blocks_of_the_second(compute: Callable[..., Any]) -> None:
    x, y = floats(4, 3), floats(2, 3, seed=1)
    close(compute(lambda x, y: x + y, x, y), x + np.tile(y, (2, 1)))


def test_a_product_with_a_number_scales(compute: Callable[..., Any]) -> None:
    x = floats(2, 3)
    close(compute(lambda x: x * -0.5, x), x * -0.5)


@pytest.mark.parametrize(
    ("shape", "weight"),
    [
        ((1, 4), (3, 4)), ((5, 4), (3, 4)), ((5, 4), (1, 4)), ((2, 5, 4), (2, 3, 4)),
        ((6, 5, 4), (2, 3, 4)), ((6, 5, 4), (3, 4)), ((2, 6, 5, 4), (3, 3, 4)),
    ],
)  # fmt: skip
def test_linear_multiplies_by_the_transposed_weight_and_repeats_it_for_groups(
    compute: Callable[..., Any], shape: tuple[int, ...], weight: tuple[int, ...]
) -> None:
    x, w = floats(*shape), floats(*weight, seed=1)
    lead = x.shape[-3] // w.shape[-3] if len(w.shape) > 2 else 1
    expected = (
        x @ np.repeat(w, lead, axis=-3).swapaxes(-1, -2) if lead > 1 else x @ w.swapaxes(-1, -2)
    )
    close(compute(lambda x, w: x.linear(w), x, w), expected)


def test_linear_takes_half_precision_weights(compute: Callable[..., Any]) -> None:
    x, w = floats(3, 8), floats(2, 8, seed=1).astype(np.float16)
    found = compute(lambda x, w: x.linear(w, full_precision=True), x, w)
    np.testing.assert_allclose(found, x @ w.T.astype(np.float32), rtol=1e-2, atol=1e-2)


# Activations and norms


@pytest.mark.parametrize(
    ("name", "function", "atol"),
    [("silu", silu, 1e-5), ("gelu", gelu, 5e-3), ("tanh", np.tanh, 1e-5)],
)
def test_activations_are_those_of_numpy(
    compute: Callable[..., Any], name: str, function: Any, atol: float
) -> None:
    x = floats(2, 8) * 3
    close(compute(lambda x: getattr(x, name)(), x), function(x), atol=atol)


@pytest.mark.parametrize(
    ("gated", "function", "atol"), [(silu_gate, silu, 1e-5), (gelu_gate, gelu, 1e-2)]
)
def test_gates_multiply_the_activation_by_the_second(
    compute: Callable[..., Any],
    gated: Callable[..., Tensor],
    function: Callable[[npt.NDArray[Any]], npt.NDArray[Any]],
    atol: float,
) -> None:
    gate, up = floats(2, 8) * 3, floats(2, 8, seed=1)
    found = compute(gated, gate, up)
    close(found, function(gate) * up, atol=atol)


@pytest.mark.parametrize("epsilon", [1e-6, 1e-5, 1.0])
def test_rms_norm_divides_by_the_root_of_the_mean_square(
    compute: Callable[..., Any], epsilon: float
) -> None:
    x = floats(2, 3, 8) * 5
    expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon)
    close(compute(lambda x: x.rms_norm(epsilon), x), expected)


def test_rms_norm_of_zeros_is_zero(compute: Callable[..., Any]) -> None:
    close(compute(lambda x: x.rms_norm(1e-6), np.zeros((1, 4), np.float32)), np.zeros((1, 4)))


@pytest.mark.parametrize("type_", [np.float32, np.float16])
def test_softmax_scales_then_masks(
    compute: Callable[..., Any], type_: type[np.float32] | type[np.float16]
) -> None:
    scores = floats(2, 3, 4)
    hidden = -np.inf
    rows = [[0, hidden, 0, 0], [0, 0, 0, 0], [hidden, hidden, hidden, 0]]
    mask: npt.NDArray[Any] = np.array(rows, type_)
    found = compute(lambda s, m: attention.softmax(s, m, 0.25), scores, mask)
    close(found, softmax(scores * 0.25 + mask))
    assert (found[:, 2] == [0, 0, 0, 1]).all()


def test_softmax_without_a_mask_sums_to_one(compute: Callable[..., Any]) -> None:
    scores = floats(3, 4)
    found = compute(lambda s: attention.softmax(s, None, 2.0), scores)
    close(found, softmax(scores * 2))
    close(found.sum(-1), np.ones(3))


# Rows


@pytest.mark.parametrize("type_", [np.float32, np.float16])
def test_rows_are_looked_up_as_numpy_does(
    compute: Callable[..., Any], type_: type[np.float32] | type[np.float16]
) -> None:
    table = floats(5, 4).astype(type_)
    found = compute(lambda t, i: t.rows(i), table, integers(4, 0, 4))
    assert found.dtype == np.float32
    close(found, table[[4, 0, 4]])


@pytest.mark.parametrize(
    ("type_", "error"), [(GGMLType.F32, 0.0), (GGMLType.F16, 2e-3), (GGMLType.Q8_0, 2e-2)]
)
def test_rows_are_written_where_the_indices_say_and_the_others_stay(
    backend: Backend, context: Context, type_: GGMLType, error: float
) -> None:
    cache = context.host.zeros((6, 32), type_)
    rows = context.input("rows", (2,), GGMLType.I64)
    values = context.input("values", (2, 32), GGMLType.F32)
    context.forward(cache.set_rows(values, rows))
    every = context.input("every", (6,), GGMLType.I32)
    result = context.output(cache.rows(every))

    expected = np.zeros((6, 32), np.float32)
    for places, seed in (([4, 1], 1), ([0, 4], 2)):
        new = floats(2, 32, seed=seed)
        expected[places] = new
        data = [(rows, np.array(places)), (values, new), (every, np.arange(6, dtype=np.int32))]
        found = backend.compute(context, data, [result]).outputs[0]
        np.testing.assert_allclose(found, expected, atol=error)


# Shape


@pytest.mark.parametrize(
    ("shape", "wanted", "found"),
    [
        ((2, 6), (3, 4), (3, 4)),
        ((2, 6), (-1, 4), (3, 4)),
        ((2, 6), (-1,), (12,)),
        ((2, 6), (2, 2, -1), (2, 2, 3)),
        ((2, 6), (1, 12, 1, 1), (1, 12, 1, 1)),
    ],
)
def test_reshape_keeps_the_order_of_the_elements(
    compute: Callable[..., Any],
    shape: tuple[int, int],
    wanted: tuple[int, ...],
    found: tuple[int, ...],
) -> None:
    x = floats(*shape)
    result = compute(lambda x: x.reshape(*wanted), x)
    assert result.shape == found
    close(result, x.reshape(found))


@pytest.mark.parametrize(
    "axes", [(1, 0), (0, 1), (1, 0, 2), (2, 0, 1), (2, 1, 0), (0, 2, 1), (3, 1, 0, 2), (1, 2, 3, 0)]
)
def test_transpose_takes_axes_as_in_numpy(
    compute: Callable[..., Any], axes: tuple[int, ...]
) -> None:
    x = floats(*(2, 3, 4, 5)[: len(axes)])
    found = compute(lambda x: x.transpose(*axes).contiguous(), x)
    close(found, x.transpose(axes))


def test_a_transposed_tensor_is_copied_when_it_is_reshaped(compute: Callable[..., Any]) -> None:
    x = floats(2, 3, 4)
    found = compute(lambda x: x.transpose(1, 0, 2).reshape(3, 8), x)
    close(found, x.transpose(1, 0, 2).reshape(3, 8))


def test_a_transposed_tensor_shows_its_strides(context: Context) -> None:
    x = context.input("x", (2, 3, 5), GGMLType.F32).transpose(2, 0, 1)
    assert (x.shape, x.strides, x.is_contiguous) == ((5, 2, 3), (4, 60, 20), False)


@pytest.mark.parametrize(
    ("shape", "strides", "offset"),
    [
        ((4,), (), 8),
        ((3, 2), (24,), 4),
        ((2, 3, 2), (8, 24), 0),
        ((2, 3, 2, 1), (8, 24, 4), 0),
        ((1, 24), (96,), 0),
    ],
)
def test_strided_views_are_those_of_numpy(
    compute: Callable[..., Any], shape: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> None:
    x = floats(4, 6)
    view = np.lib.stride_tricks.as_strided(x.reshape(-1)[offset // 4 :], shape, (*strides, 4))
    close(compute(lambda x: x.strided(shape, strides, offset).contiguous(), x), view)


@pytest.mark.parametrize(
    ("parts", "axis"), [(3, -1), (2, 1), ((1, 2, 1), 1), ((2, 4), 2), ((2,), 0)]
)
def test_split_returns_the_parts_that_numpy_does(
    compute: Callable[..., Any], parts: int | tuple[int, ...], axis: int
) -> None:
    x = floats(2, 4, 6)
    found = compute(lambda x: [each.contiguous() for each in x.split(parts, axis)], x)
    ends = parts if isinstance(parts, int) else np.cumsum(parts)[:-1]
    for part, expected in zip(found, np.split(x, ends, axis), strict=True):
        assert np.array_equal(part, expected)


@pytest.mark.parametrize(("parts", "axis"), [(4, -1), ((1, 2), 1), ((3, 3), 0)])
def test_parts_that_do_not_fill_an_axis_are_refused(
    given: Callable[..., Any], parts: int | tuple[int, ...], axis: int
) -> None:
    with pytest.raises(ShapeError, match="split in"):
        given(floats(2, 4, 6)).split(parts, axis)


def test_a_view_of_a_cache_joins_the_graph_that_asks(backend: Backend, context: Context) -> None:
    cache = context.host.from_floats(range(6), (2, 3))
    result = context.output(cache.strided((2,), (), 12, context=context) * 10.0)
    assert backend.compute(context, [], [result]).outputs[0].tolist() == [30, 40]


@pytest.mark.parametrize(
    ("type_", "error"), [(GGMLType.F16, 2e-3), (GGMLType.BF16, 2e-2), (GGMLType.Q8_0, 2e-2)]
)
def test_cast_changes_the_type_and_back(
    compute: Callable[..., Any], type_: GGMLType, error: float
) -> None:
    x = floats(2, 32)
    found = compute(lambda x: x.cast(type_).cast(GGMLType.F32), x)
    np.testing.assert_allclose(found, x, atol=error)
    assert type_ is GGMLType.F32 or not np.array_equal(found, x)


def test_cast_takes_a_transposed_tensor(compute: Callable[..., Any]) -> None:
    x = floats(2, 3)
    close(compute(lambda x: x.transpose(1, 0).cast(GGMLType.F32), x), x.T)


# Attention

SCALINGS = {
    "none": RopeScaling(),
    "linear": RopeScaling(frequency_scale=0.25),
    "magnitude": RopeScaling(magnitude=1.5),
    "yarn": RopeScaling(frequency_scale=0.25, original_context=32, extrapolation=1.0),
}


@pytest.mark.parametrize("mode", [HALVES, NEIGHBOURS])
@pytest.mark.parametrize("dimensions", [2, 8, 16])
@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("with_factors", [False, True])
def test_rope_rotates_pairs_by_position(
    compute: Callable[..., Any], mode: RopeMode, dimensions: int, scaling: str, with_factors: bool
) -> None:
    x, positions = floats(4, 2, 16), integers(0, 1, 7, 1000)
    factors = np.linspace(1, 8, dimensions // 2, dtype=np.float32) if with_factors else None
    settings: dict[str, Any] = {
        "dimensions": dimensions,
        "base": 1e4,
        "mode": mode,
        "scaling": SCALINGS[scaling],
    }
    arrays = [x, positions] if factors is None else [x, positions, factors]
    found = compute(lambda x, p, f=None: Rope(**settings, factors=f)(x, p), *arrays)
    close(found, rope(x, positions, **settings, factors=factors), atol=2e-4)
    assert np.array_equal(found[..., dimensions:], x[..., dimensions:])


def test_rope_keeps_products_of_equal_distance(compute: Callable[..., Any]) -> None:
    x = np.repeat(floats(1, 1, 8), 2, axis=0)
    settings: dict[str, Any] = {
        "dimensions": 8,
        "base": 1e4,
        "mode": HALVES,
        "scaling": RopeScaling(),
    }
    near = compute(lambda x, p: Rope(**settings)(x, p), x, integers(3, 10))
    assert np.allclose(np.linalg.norm(near, axis=-1), np.linalg.norm(x, axis=-1))


@pytest.mark.parametrize("type_", [GGMLType.F32, GGMLType.F16])
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (4, 2), (3, 1)])
@pytest.mark.parametrize("tokens", [1, 3, 70])
def test_flash_attention_is_softmax_attention(
    compute: Callable[..., Any], type_: GGMLType, heads: int, kv_heads: int, tokens: int
) -> None:
    history = tokens + 5
    q = floats(heads, tokens, 32)
    k, v = floats(kv_heads, history, 32, seed=1), floats(kv_heads, history, 16, seed=2)
    mask = np.where(
        np.arange(history) <= np.arange(tokens)[:, None] + 5, np.float16(0), np.float16(-np.inf)
    )
    found = compute(
        lambda q, k, v, m: flash_attention(q, k.cast(type_), v.cast(type_), m, 0.3), q, k, v, mask
    )
    groups = heads // kv_heads
    scores = softmax(q @ np.repeat(k, groups, 0).swapaxes(1, 2) * 0.3 + mask)
    expected = (scores @ np.repeat(v, groups, 0)).transpose(1, 0, 2)
    np.testing.assert_allclose(found, expected, atol=5e-3 if type_ is GGMLType.F16 else 1e-4)


SLOPES = {  # of ALiBi with the largest bias 8, as its paper has them for other numbers of heads
    4: [1 / 4, 1 / 16, 1 / 64, 1 / 256],
    6: [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8],
}


@pytest.mark.parametrize("heads", SLOPES)
@pytest.mark.parametrize("tokens", [1, 70])
def test_alibi_multiplies_the_distances_by_a_slope_of_each_head(
    compute: Callable[..., Any], heads: int, tokens: int
) -> None:
    q, k, v = floats(heads, tokens, 32), floats(2, 80, 32, seed=1), floats(2, 80, 16, seed=2)
    distance = np.arange(80) - np.arange(80 - tokens, 80)[:, None]
    mask = np.where(distance <= 0, distance, -np.inf).astype(np.float16)
    shared = np.repeat(k, heads // 2, 0), np.repeat(v, heads // 2, 0)
    weights = softmax(
        q @ shared[0].swapaxes(1, 2) * 0.3
        + np.array(SLOPES[heads])[:, None, None] * mask.astype(np.float32)
    )
    fused, plain = compute(
        lambda q, k, v, m: (
            flash_attention(q, k, v, m, 0.3, max_bias=8.0),
            attention.softmax(q.linear(k), m, 0.3, max_bias=8.0),
        ),
        q, k, v, mask,
    )  # fmt: skip
    close(plain, weights)
    np.testing.assert_allclose(fused, (weights @ shared[1]).transpose(1, 0, 2), atol=1e-4)
