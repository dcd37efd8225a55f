"""Graphs that several devices compute, two stand-ins and the CPU."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.devices import StandIn
from support.graphs import floats

from tampu.errors import ComputeError, OutOfMemoryError
from tampu.ml import Backend, GGMLType
from tampu.ml.device_map import DeviceMap
from tampu.ml.kernels.matmul import custom
from tampu.ml.library import gg

F32 = GGMLType.F32


@pytest.fixture
def devices() -> tuple[StandIn, StandIn]:
    return StandIn(0), StandIn(1)


@pytest.fixture
def divided(devices: tuple[StandIn, StandIn]) -> Iterator[Backend]:
    """A backend whose layers 0, 1 and 2 are the CPU's, the first's and the second's."""
    device_map = DeviceMap(tuple(each.device for each in devices), (-1, 0, 1))
    backend = Backend(threads=1, max_nodes=256, device_map=device_map)
    yield backend
    backend.close()
    assert [each.taken for each in devices] == [0, 0]


class Chain:
    """A graph that goes through the weights of the three layers, a few times."""

    def __init__(self, backend: Backend, size: int, times: int = 1, seed: int = 0) -> None:
        self.backend, self.times = backend, times
        self.store = backend.context(8)
        self.values = [floats(size, size, seed=seed + n) / size for n in range(3)]
        self.weights = [self.store.layer(n).empty((size, size), F32) for n in range(3)]
        for weight, values in zip(self.weights, self.values, strict=True):
            gg.ggml_backend_tensor_set(weight.pointer, values.ctypes.data, 0, values.nbytes)
            buffer = weight.pointer.contents.buffer
            gg.ggml_backend_buffer_set_usage(buffer, gg.GGML_BACKEND_BUFFER_USAGE_WEIGHTS)
        self.context = backend.context(128)
        self.x = self.context.input("x", (4, size), F32)
        y = self.x
        for _ in range(times):
            for weight in self.weights:
                y = y.linear(weight).silu() + self.x
        self.y = self.context.output(y)

    def __call__(self, data: Any) -> npt.NDArray[Any]:
        return self.backend.compute(self.context, [(self.x, data)], [self.y]).outputs[0]

    def expected(self, data: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        y: npt.NDArray[Any] = data
        for _ in range(self.times):
            for values in self.values:
                y = y @ values.T
                y = y / (1 + np.exp(-y)) + data
        return y

    def close(self) -> None:
        self.context.close()
        self.store.close()


@pytest.fixture
def chain(divided: Backend) -> Iterator[Callable[..., Any]]:
    made = []

    def make(*arguments: int, **options: int) -> Chain:
        made.append(Chain(divided, *arguments, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def check(chain: Chain, seed: int) -> None:
    data = floats(4, chain.values[0].shape[0], seed=seed)
    np.testing.assert_allclose(chain(data), chain.expected(data), rtol=2e-4, atol=1e-4)


def test_a_graph_goes_from_device_to_device(
    chain: Callable[..., Any], devices: tuple[StandIn, StandIn]
) -> None:
    graph = chain(32)
    for seed in range(4):
        check(graph, seed)
    assert all(each.taken > 0 for each in devices)


def test_graphs_are_kept_and_computed_in_turns(chain: Callable[..., Any]) -> None:
    """ggml frees what it wrote into a graph when it divides the next."""
    graphs = [chain(16), chain(24, times=3), chain(16, times=2, seed=5), chain(64)]
    for seed in range(4):
        for graph in graphs:
            check(graph, seed)
        check(graphs[seed], seed + 1)
        check(graphs[seed], seed + 2)
        gc.collect()


def test_a_larger_graph_is_split_again(divided: Backend, chain: Callable[..., Any]) -> None:
    graph, other = chain(16), chain(32)
    data = floats(4, 16)
    check(graph, 0)
    check(other, 0)
    more = graph.context.output(graph.y.linear(graph.weights[1]))
    found = divided.compute(graph.context, [(graph.x, data)], [graph.y, more]).outputs
    np.testing.assert_allclose(found[0], graph.expected(data), rtol=2e-4, atol=1e-4)
    wanted = graph.expected(data) @ graph.values[1].T
    np.testing.assert_allclose(found[1], wanted, rtol=2e-4, atol=1e-4)
    check(other, 1)


@pytest.mark.seed("S39", "S40")
def test_after_reserving_the_largest_nothing_grows_on_any_device(
    divided: Backend, chain: Callable[..., Any], devices: tuple[StandIn, StandIn]
) -> None:
    largest = chain(64, times=3)
    divided.reserve(largest.context)
    sizes = divided.graph_sizes()
    assert list(sizes) == ["GPU.0", "GPU.1", "CPU.0"]
    assert min(sizes.values()) > 0
    assert sum(sizes.values()) == divided.graph_bytes
    others = [chain(16), chain(32, times=2)]
    taken = [each.taken for each in devices]
    for graph in [largest, *others] * 2:
        check(graph, 1)
    assert divided.graph_sizes() == sizes
    assert [each.taken for each in devices] == taken


@pytest.mark.seed("S7")
def test_inputs_are_on_the_cpu_and_caches_with_their_layers(
    divided: Backend, devices: tuple[StandIn, StandIn]
) -> None:
    context = divided.context(16)
    near = context.host.zeros((4, 4), F32)
    kept = [context.layer(n).zeros((4, 4), F32) for n in range(3)]
    hosts = [gg.ggml_backend_buffer_is_host(t.pointer.contents.buffer) for t in (near, *kept)]
    assert hosts == [True, True, False, False]
    assert [each.taken for each in devices] == [64, 64]
    context.close()


def test_the_packages_own_operations_run_on_the_cpu(
    divided: Backend, chain: Callable[..., Any]
) -> None:
    graph = chain(16)
    noted = []

    def negate(result: Any, number: Any, *_: object) -> None:
        source, target = (
            np.ctypeslib.as_array(gg.ggml_get_data_f32(pointer), (4, 16))
            for pointer in (result.contents.src[0], result)
        )
        noted.append(number)
        target[:] = -source

    operation = gg.ggml_custom_op_t(negate)
    pointer = custom(graph.context, gg.GGML_TYPE_F32, (16, 4, 1, 1), [graph.y.pointer], operation)
    negated = graph.context.wrap(pointer, (4, 16), F32).linear(graph.weights[2])
    after = graph.context.output(negated)
    data = floats(4, 16)
    for _ in range(2):
        found = divided.compute(graph.context, [(graph.x, data)], [after]).outputs[0]
        wanted = -graph.expected(data) @ graph.values[2].T
        np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=1e-4)
    assert noted == [0, 0]


def test_nan_is_detected_on_any_device(divided: Backend, chain: Callable[..., Any]) -> None:
    graph = chain(16)
    divided.detect_nan()
    data = floats(4, 16)
    check(graph, 0)
    data[0, 0] = np.nan
    found = divided.compute(graph.context, [(graph.x, data)], [graph.y])
    assert found.fault


@pytest.mark.seed("S6", "S41")
def test_a_device_without_memory_for_a_graph_is_reported(devices: tuple[StandIn, StandIn]) -> None:
    devices[0].limit = 20_000
    device_map = DeviceMap((devices[0].device,), (-1, 0, 0))
    backend = Backend(threads=1, max_nodes=256, device_map=device_map)
    small, large = Chain(backend, 16), Chain(backend, 32, times=3)
    check(small, 0)
    devices[0].limit = devices[0].taken
    with pytest.raises(OutOfMemoryError, match="no memory for a graph"):
        backend.reserve(large.context)
    devices[0].limit = 10**6
    check(small, 1)
    check(large, 1)
    for graph in (small, large):
        graph.close()
    backend.close()
    assert devices[0].taken == 0


def test_a_device_that_fails_to_initialize_is_named_and_the_others_are_freed(
    devices: tuple[StandIn, StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    freed, real = [], gg.ggml_backend_dev_init
    bad = devices[1].device.handle
    monkeypatch.setattr(gg, "ggml_backend_dev_init", lambda h, p: None if h == bad else real(h, p))
    free = gg.ggml_backend_free
    monkeypatch.setattr(gg, "ggml_backend_free", lambda h: (freed.append(h), free(h)))
    device_map = DeviceMap(tuple(each.device for each in devices), (0, 1))
    with pytest.raises(ComputeError, match=r"cannot initialize the device GPU\.1, a stand-in"):
        Backend(threads=1, device_map=device_map)
    assert len(freed) == 1


def test_a_graph_is_planned_once_though_others_are_computed_in_between(
    divided: Backend, chain: Callable[..., Any]
) -> None:
    graphs = [chain(16), chain(24, times=3), chain(16, times=2, seed=5)]
    for graph in graphs * 2:  # what grows the memory makes the plans before it invalid
        check(graph, 0)
    plans = divided.counts.plans
    for seed in range(1, 4):
        for graph in graphs:
            check(graph, seed)
    assert divided.counts.plans == plans
    check(chain(96), 0)  # it takes more memory, so that the others move
    for graph in graphs * 2:
        check(graph, 4)
    assert divided.counts.plans == plans + 1 + len(graphs)


def test_weights_of_the_cpu_are_copied_where_a_device_reads_them(
    divided: Backend, chain: Callable[..., Any], devices: tuple[StandIn, StandIn]
) -> None:
    graph, other = chain(16), chain(24)
    scales = [graph.store.host.from_floats(floats(16, seed=n), (16,)) for n in range(3)]
    for scale in scales:
        buffer = scale.pointer.contents.buffer
        gg.ggml_backend_buffer_set_usage(buffer, gg.GGML_BACKEND_BUFFER_USAGE_WEIGHTS)
    y = graph.y
    for scale in scales:
        y = y.linear(graph.weights[1]) * scale
    last, data = graph.context.output(y), floats(4, 16)
    wanted = graph.expected(data)
    for n in range(3):
        wanted = (wanted @ graph.values[1].T) * floats(16, seed=n)
    plans = []
    for seed in range(4):
        found = divided.compute(graph.context, [(graph.x, data)], [last]).outputs[0]
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)
        check(other, seed)
        plans.append(divided.counts.plans)
    assert all(each.taken for each in devices)
    assert plans[1:] == plans[1:2] * 3


def test_a_search_for_nan_may_begin_after_a_graph_was_planned(
    divided: Backend, chain: Callable[..., Any]
) -> None:
    graph, data = chain(16), floats(4, 16)
    check(graph, 0)
    divided.detect_nan()
    data[0, 0] = np.nan
    assert divided.compute(graph.context, [(graph.x, data)], [graph.y]).fault


def test_a_device_that_orders_nodes_anew_each_time_computes_them_where_they_were_planned(
    divided: Backend, devices: tuple[StandIn, StandIn]
) -> None:
    """Vulkan's backend does: it looks at some nodes at a time, and moves what may be earlier."""

    def swap(nodes: list[int]) -> list[int]:
        orders.append([nodes.index(each) for each in moving] if moving[0] in nodes else [])
        return [nodes[n] for n in (0, 2, 1, *range(3, len(nodes)))]

    orders: list[list[int]] = []
    store, context = divided.context(8), divided.context(32)
    values = [floats(16, 16, seed=n) for n in range(3)]
    weights = [store.layer(1).empty((16, 16), F32) for _ in values]
    for weight, data in zip(weights, values, strict=True):
        gg.ggml_backend_tensor_set(weight.pointer, data.ctypes.data, 0, data.nbytes)
    x = context.input("x", (16, 16), F32)
    before = x.linear(weights[0])
    other, after = x.linear(weights[1]), before.linear(weights[2])
    for each in (before, other, after):
        context.forward(each)
    moving = [ctypes.addressof(each.pointer.contents) for each in (other, after)]
    y = context.output(other + after)
    devices[0].orders = swap
    given = floats(16, 16, seed=3)
    found = divided.compute(context, [(x, given)], [y]).outputs[0]
    wanted = given @ values[1].T + given @ values[0].T @ values[2].T
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    assert len(orders) > 1
    context.close()
    store.close()
