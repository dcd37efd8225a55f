"""Deterministic graphs: a row's result is the same bits whatever the other rows are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.graphs import TYPES, floats
from support.kernels import WITH_TILES, levels
from support.states import row_arrays, state_rows, written_states

from tampu.errors import RequestError, ShapeError
from tampu.ml import Backend, GGMLType, Tensor
from tampu.ml.kernels import KernelChoice, find_kernels
from tampu.ml.recurrence import gated_delta_rule
from tampu.ml.selective_scan import selective_scan

TOKENS = 40
Array = npt.NDArray[Any]


@pytest.fixture(scope="module", params=[1, 3])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    backend = Backend(threads=request.param, kernels=KernelChoice(deterministic=True))
    context = backend.context()
    x = context.input("x", (1,), GGMLType.F32)  # its threads are there before the first test
    backend.compute(context, [(x, np.zeros(1, np.float32))], [context.output(x * 2.0)])
    context.close()
    yield backend
    backend.close()


def computed(backend: Backend, build: Callable[..., list[Tensor]], *arrays: Array) -> list[Array]:
    context = backend.context()
    inputs = [context.input("x", array.shape, TYPES[array.dtype]) for array in arrays]
    outputs = [context.output(tensor) for tensor in build(*inputs)]
    data = [(t, np.ascontiguousarray(a)) for t, a in zip(inputs, arrays, strict=True)]
    found = [np.array(each) for each in backend.compute(context, data, outputs).outputs]
    context.close()
    return found


@pytest.mark.parametrize("shape", [(TOKENS, 96), (3, TOKENS, 96), (4, TOKENS, 96)])
@pytest.mark.parametrize("type_", [GGMLType.F32, GGMLType.F16])
def test_products_by_ggml(backend: Backend, shape: tuple[int, ...], type_: GGMLType) -> None:
    """Also with a matrix for each of the first dimension, or for each two of them."""
    x = floats(*shape)
    leading = {2: (), 3: (shape[0],), 4: (2,)}[len(shape) + (shape[0] == 4)]
    w = floats(*leading, 33, 96, seed=1)

    def product(x: Tensor, w: Tensor) -> list[Tensor]:
        return [x.linear(w.cast(type_))]

    [together] = computed(backend, product, x, w)
    np.testing.assert_allclose(
        together, x @ np.repeat(w, shape[0] // leading[0], 0).swapaxes(-1, -2) if leading
        else x @ w.T, rtol=2e-2 if type_ is GGMLType.F16 else 1e-4, atol=2e-2,
    )  # fmt: skip
    for part in (slice(0, 1), slice(7, 9), slice(3, 36)):
        [alone] = computed(backend, product, x[..., part, :], w)
        assert np.array_equal(alone, together[..., part, :]), part


def test_products_of_more_dimensions_are_refused(backend: Backend) -> None:
    with pytest.raises(ShapeError, match="deterministic"):
        computed(backend, lambda x, w: [x.linear(w)], floats(2, 2, 3, 32), floats(2, 2, 5, 32))


def rule(*tensors: Tensor) -> list[Tensor]:
    *operands, stored, read, written = tensors
    heads, features = operands[2].shape[2:]
    state = state_rows((heads, features, features), stored, read, written)
    q, k, v, decay, beta = operands
    return [gated_delta_rule(q, k, v, decay, beta, state), written_states(state)]


def scan(*tensors: Tensor) -> list[Tensor]:
    *operands, stored, read, written = tensors
    heads, features = operands[0].shape[2:]
    state = state_rows((heads, features, operands[1].shape[3]), stored, read, written)
    x, b, c, step, decay, skip = operands
    return [selective_scan(x, b, c, step, decay, skip, state), written_states(state)]


def rule_arrays(*, each: bool = False) -> list[Array]:
    k = floats(1, TOKENS, 2, 64, seed=1)
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    gates = (1, TOKENS, 4, 64) if each else (1, TOKENS, 4)
    decay, beta = -np.abs(floats(*gates, seed=3)), np.full((1, TOKENS, 4), 0.4, np.float32)
    return [floats(1, TOKENS, 2, 64), k, floats(1, TOKENS, 4, 64, seed=2), decay, beta]


def scan_arrays() -> list[Array]:
    return [floats(1, TOKENS, 4, 64), floats(1, TOKENS, 2, 64, seed=1),
            floats(1, TOKENS, 2, 64, seed=2), floats(1, TOKENS, 4, seed=3)]  # fmt: skip


@pytest.mark.parametrize(
    ("build", "streams", "fixed"),
    [
        pytest.param(rule, rule_arrays(), [], id="delta rule"),
        pytest.param(rule, rule_arrays(each=True), [], id="delta rule, a decay of each feature"),
        pytest.param(scan, scan_arrays(), [-np.abs(floats(4, 1, seed=4)), floats(4, 1, seed=5)],
                     id="selective scan"),
    ],
)  # fmt: skip
def test_states_do_not_depend_on_how_many_tokens_are_computed_at_once(
    backend: Backend, build: Callable[..., list[Tensor]], streams: list[Array], fixed: list[Array]
) -> None:
    first = floats(1, 4, 64, 64, seed=6)
    whole, last = computed(backend, build, *streams, *fixed, *row_arrays(first, 1))
    for steps in ([1] * TOKENS, [17, 1, 22], [16, 24]):
        state, outputs, start = first, [], 0
        for count in steps:
            parts = [each[:, start : start + count] for each in streams]
            y, state = computed(backend, build, *parts, *fixed, *row_arrays(state, 1))
            state = state.reshape(first.shape)
            outputs.append(y)
            start += count
        assert np.array_equal(np.concatenate(outputs, 1), whole), steps
        assert np.array_equal(state.reshape(last.shape), last), steps


def test_no_level_with_tiles_is_chosen() -> None:
    for level in levels():
        if level in WITH_TILES:
            with pytest.raises(RequestError, match=f"no kernels for {level}"):
                find_kernels(KernelChoice(level=level, deterministic=True))
        else:
            found = find_kernels(KernelChoice(level=level, deterministic=True))
            assert found is not None
            assert found.level == level
