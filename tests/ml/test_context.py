"""Graphs being built, and tensors with memory of their own."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.graphs import floats

from tampu.errors import ComputeError, OutOfMemoryError, ShapeError
from tampu.ml import Backend, Context, GGMLType, Tensor
from tampu.ml.context import Storage
from tampu.ml.library import gg

WAYS = {
    "empty": lambda storage, shape: storage.empty(shape, GGMLType.F32),
    "zeros": lambda storage, shape: storage.zeros(shape, GGMLType.F32),
    "floats": lambda storage, shape: storage.from_floats([1.5] * 6, shape),
}
NOT_SHAPES = [(), (0, 6), (-2, -3), (1, 1, 1, 2, 3), (2**31, 2**31)]


@pytest.fixture(params=["host", "layer"])
def storage(request: pytest.FixtureRequest, context: Context) -> Storage:
    return context.host if request.param == "host" else context.layer(3)


def read(backend: Backend, context: Context, tensor: Tensor) -> npt.NDArray[Any]:
    """Copy a tensor with memory of its own out, by way of a graph."""
    view = tensor.strided(tensor.shape, tensor.strides[:-1], context=context)
    return backend.compute(context, [], [context.output(view.contiguous())]).outputs[0]


# Tensors with memory


@pytest.mark.seed("S4", "S5", "S8")
@pytest.mark.parametrize("way", WAYS)
def test_each_constructor_of_tensors_gives_its_shape(storage: Storage, way: str) -> None:
    tensor = WAYS[way](storage, (2, 3))
    assert tensor.shape == (2, 3)
    assert tensor.size_bytes == 24
    assert tensor.context is None


@pytest.mark.seed("S4", "S5", "S8", "S98")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", NOT_SHAPES)
def test_each_constructor_refuses_an_invalid_shape(
    storage: Storage, way: str, shape: tuple[int, ...]
) -> None:
    with pytest.raises(ShapeError):
        WAYS[way](storage, shape)


@pytest.mark.seed("S4", "S5", "S98")
@pytest.mark.parametrize("count", [0, 1, 5, 7, 12])
def test_data_must_fill_the_shape_exactly(storage: Storage, count: int) -> None:
    with pytest.raises(ShapeError, match=rf"{count} values do not fill the shape \(2, 3\)"):
        storage.from_floats([1] * count, (2, 3))


@pytest.mark.seed("S6", "S8", "S41")
@pytest.mark.parametrize("way", WAYS)
def test_each_constructor_raises_without_memory(
    storage: Storage, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gg, "ggml_backend_buft_alloc_buffer", lambda *_: None)
    with pytest.raises(
        OutOfMemoryError, match=r"no memory for a tensor \(2, 3\) of .32: \d+ bytes"
    ):
        WAYS[way](storage, (2, 3))


@pytest.mark.seed("S7")
def test_host_tensors_are_in_the_cpus_memory(context: Context) -> None:
    tensor = context.host.zeros((2, 3), GGMLType.F32)
    kind = gg.ggml_backend_buffer_get_type(tensor.pointer.contents.buffer)
    assert gg.ggml_backend_buft_name(kind) == b"CPU"
    assert gg.ggml_backend_buft_is_host(kind)


@pytest.mark.seed("S9")
def test_a_new_tensor_is_used_without_asking_whether_it_is_there(
    backend: Backend, context: Context
) -> None:
    ones = context.host.from_floats([1, 1, 1], (3,))
    total = context.host.from_floats([1, 2, 3], (3,)).strided((3,), (), context=context) + ones
    assert backend.compute(context, [], [context.output(total)]).outputs[0].tolist() == [2, 3, 4]


def test_floats_and_integers_keep_their_values(backend: Backend, context: Context) -> None:
    values = floats(2, 3)
    assert np.array_equal(read(backend, context, context.host.from_floats(values, (2, 3))), values)
    turned = context.host.from_floats(values.T, (3, 2))  # an array that is not contiguous
    assert np.array_equal(read(backend, context, turned), values.T)


def test_zeros_are_zero(backend: Backend, context: Context) -> None:
    assert not read(backend, context, context.host.zeros((64, 64), GGMLType.F32)).any()


def test_a_context_counts_the_memory_of_its_storages(backend: Backend) -> None:
    context = backend.context(4)
    assert context.size_bytes == 0
    context.host.zeros((1024,), GGMLType.F32)
    context.layer(0).zeros((1024,), GGMLType.F16)
    assert 6144 <= context.size_bytes <= 6144 + 256
    context.close()


# Inputs


@pytest.mark.parametrize("shape", NOT_SHAPES)
def test_an_input_must_have_a_shape(context: Context, shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match="no tensor of type F32 has the shape"):
        context.input("x", shape, GGMLType.F32)


def test_a_row_is_made_of_whole_blocks(context: Context) -> None:
    assert context.input("x", (2, 64), GGMLType.Q8_0).shape == (2, 64)
    with pytest.raises(ShapeError, match="no tensor of type Q8_0"):
        context.input("x", (64, 2), GGMLType.Q8_0)


# The size of graphs


def test_a_graph_holds_as_many_tensors_as_it_was_made_for(backend: Backend) -> None:
    context = backend.context(5)
    x = context.input("x", (2,), GGMLType.F32)
    y = x
    for _ in range(4):
        y = y + x
    for _ in range(40):  # and it stays like this
        with pytest.raises(ComputeError, match="more than 5 tensors"):
            y + x
    result = backend.compute(context, [(x, np.ones(2, np.float32))], [context.output(y)])
    assert result.outputs[0].tolist() == [5, 5]
    context.close()


def test_tensors_with_memory_count_too(backend: Backend) -> None:
    context = backend.context(1)
    context.host.zeros((2,), GGMLType.F32)
    with pytest.raises(ComputeError, match="more than 1 tensors"):
        context.host.zeros((2,), GGMLType.F32)
    context.close()


def test_a_graph_can_use_as_many_weights_as_it_has_nodes(backend: Backend) -> None:
    weights, context = backend.context(1024), backend.context(1024)
    x = context.input("x", (1,), GGMLType.F32)
    y = x
    for _ in range(1023):
        y = y + weights.host.from_floats([1.0], (1,))
    result = backend.compute(context, [(x, np.zeros(1, np.float32))], [context.output(y)])
    assert result.outputs[0].tolist() == [1023]
    context.close()
    weights.close()


def test_a_closed_graph_makes_no_tensors(backend: Backend) -> None:
    context = backend.context(4)
    context.close()
    context.close()
    with pytest.raises(ComputeError, match="closed"):
        context.input("x", (2,), GGMLType.F32)


def test_a_graph_without_memory_for_its_headers_is_refused(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gg, "ggml_init", lambda *_: None)
    with pytest.raises(OutOfMemoryError, match="no memory for a graph of 4 tensors"):
        backend.context(4)
