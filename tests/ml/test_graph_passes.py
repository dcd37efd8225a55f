"""The order of a graph's nodes, and which of them are computed where keys and values are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.devices import StandIn
from support.graphs import floats, integers

from tampu.ml import Backend, Context, GGMLType, Tensor
from tampu.ml.attention import softmax
from tampu.ml.device_map import DeviceMap
from tampu.ml.library import gg
from tampu.ml.moe import gather, top_k


def operations(context: Context) -> list[str]:
    """Return ggml's names of a graph's nodes in their order."""
    count = gg.ggml_graph_n_nodes(context.graph)
    nodes = [gg.ggml_graph_node(context.graph, n).contents for n in range(count)]
    return [gg.ggml_op_name(node.op).decode() for node in nodes]


def on_cpu(context: Context) -> list[str]:
    return [gg.ggml_op_name(node.contents.op).decode() for node in context.cpu_nodes]


def test_nodes_are_in_the_order_in_which_they_were_made(context: Context) -> None:
    x = context.input("x", (2, 32), GGMLType.F32)
    first, second = x.sigmoid(), x * 3.0
    context.output(second + first)
    assert operations(context) == ["SCALE", "UNARY", "ADD"]  # ggml's order
    context.finish()
    assert operations(context) == ["UNARY", "SCALE", "ADD"]


def test_a_view_is_right_behind_what_it_views(context: Context) -> None:
    logits = context.input("x", (2, 8), GGMLType.F32) * 2.0
    context.output(gather(logits, top_k(logits, 2)))
    context.finish()
    assert operations(context) == ["SCALE", "RESHAPE", "ARGSORT", "VIEW", "GET_ROWS", "RESHAPE"]


def test_a_view_of_a_view_is_behind_the_first_tensor(context: Context) -> None:
    x = context.input("x", (2, 3, 8), GGMLType.F32) * 2.0
    y = x + x
    context.output(y * x.transpose(1, 0, 2).transpose(1, 0, 2))
    context.finish()
    assert operations(context) == ["SCALE", "PERMUTE", "PERMUTE", "ADD", "MUL"]


def test_nodes_forwarded_later_are_put_in_order_too(backend: Backend, context: Context) -> None:
    x = context.input("x", (4,), GGMLType.F32)
    result = context.output(x * 2.0)
    backend.compute(context, [(x, floats(4))], [result])
    first, second = x.sigmoid(), x * 3.0
    later = context.output(second + first)
    context.finish()
    assert operations(context) == ["SCALE", "UNARY", "SCALE", "ADD"]
    found = backend.compute(context, [(x, floats(4))], [later]).outputs[0]
    np.testing.assert_allclose(found, 3 * floats(4) + 1 / (1 + np.exp(-floats(4))), rtol=1e-5)


def test_what_reads_a_clamped_tensor_before_it_was_clamped_gets_the_elements_before(
    backend: Backend, context: Context
) -> None:
    """A clamp replaces the elements in place: the order decides which are read."""
    x = context.input("x", (3,), GGMLType.F32) * 1.0
    before = x * 1.0
    clamped = x.clamp(0, 1)
    result = context.output(clamped + before)
    data = np.array([-2, 0.5, 4], np.float32)
    given = [(context.inputs[0], data)]
    found = backend.compute(context, given, [result]).outputs[0]
    np.testing.assert_array_equal(found, [-2, 1, 5])


@pytest.fixture
def divided() -> Iterator[Backend]:
    """A device with both layers, their keys and values on the CPU."""
    stand_in = StandIn()
    device_map = DeviceMap((stand_in.device,), (0, 0, 0), embedding=0, cpu_cache=True)
    backend = Backend(threads=1, max_nodes=1024, device_map=device_map)
    yield backend
    backend.close()


def attended(q: Tensor, keys: Tensor, values: Tensor) -> Any:
    """Return attention without a mask: (tokens, heads, features)."""
    weights = softmax(q.linear(keys) * 0.5)
    return weights.linear(values.transpose(0, 2, 1).contiguous())


def test_what_reads_a_cache_on_the_cpu_is_computed_there(divided: Backend) -> None:
    stored, context = divided.context(4), divided.context()
    keys = stored.cache(0).zeros((2, 4, 8), GGMLType.F32)
    values = stored.cache(0).zeros((2, 4, 8), GGMLType.F32)
    q = context.input("q", (2, 3, 8), GGMLType.F32) * 2.0
    views = [
        each.strided(each.shape, each.strides[:-1], context=context) for each in (keys, values)
    ]
    context.output(attended(q, *views) * 3.0 + q)
    context.finish()
    assert on_cpu(context) == ["MUL_MAT", "SCALE", "SOFT_MAX", "CONT", "MUL_MAT", "SCALE"]
    stored.close()
    context.close()
    assert not divided._compute_devices.host_caches


@pytest.mark.parametrize("where", ["layer", "host"])
def test_other_tensors_in_memory_place_nothing(divided: Backend, where: str) -> None:
    stored, context = divided.context(4), divided.context()
    storage = stored.layer(0) if where == "layer" else stored.host
    keys = storage.zeros((8, 8), GGMLType.F32)
    kept = stored.cache(0).zeros((1,), GGMLType.F32)
    x = context.input("x", (3, 8), GGMLType.F32)
    context.output(x.linear(keys))
    context.finish()
    assert kept.shape == (1,)
    assert on_cpu(context) == []
    stored.close()
    context.close()


def test_without_devices_nothing_is_placed(backend: Backend, context: Context) -> None:
    stored = backend.context(4)
    keys = stored.cache(0).zeros((8, 8), GGMLType.F32)
    context.output(keys.rows(context.input("rows", integers(1, 2).shape, GGMLType.I32)))
    context.finish()
    assert on_cpu(context) == []
    stored.close()
