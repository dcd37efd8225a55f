"""Computing graphs: the same one again, several in turns, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import pytest
from support.graphs import floats, integers

from tampu.errors import ComputeError, OutOfMemoryError, ShapeError
from tampu.ml import Backend, Context, GGMLType
from tampu.ml.attention import softmax
from tampu.ml.library import gg

F32, F16, I32 = GGMLType.F32, GGMLType.F16, GGMLType.I32


class Graph:
    """A graph with one input, built by a function."""

    def __init__(
        self, backend: Backend, shape: tuple[int, int], build: Callable[[Any], Any]
    ) -> None:
        self.backend = backend
        self.context = backend.context(64)
        self.x = self.context.input("x", shape, F32)
        self.y = self.context.output(build(self.x))

    def __call__(self, data: Any) -> npt.NDArray[Any]:
        return self.backend.compute(self.context, [(self.x, data)], [self.y]).outputs[0]

    def close(self) -> None:
        self.context.close()


@pytest.fixture
def graph(backend: Backend) -> Iterator[Callable[[Any, Any], Any]]:
    made = []

    def make(shape: tuple[int, int], build: Callable[[Any], Any]) -> Graph:
        made.append(Graph(backend, shape, build))
        return made[-1]

    yield make
    for each in made:
        each.close()


# Again and in turns


def test_a_graph_is_computed_again_with_other_inputs(graph: Callable[[Any, Any], Any]) -> None:
    double = graph((2, 3), lambda x: x + x)
    for seed in range(5):
        x = floats(2, 3, seed=seed)
        assert np.array_equal(double(x), 2 * x)


def test_outputs_are_copies_that_stay(graph: Callable[[Any, Any], Any]) -> None:
    double = graph((2,), lambda x: x + x)
    first = double(np.array([1, 2], np.float32))
    double(np.array([3, 4], np.float32))
    assert first.tolist() == [2, 4]


def test_graphs_in_turns_keep_their_results(graph: Callable[[Any, Any], Any]) -> None:
    chain = graph((4, 8), lambda x: ((x.silu() + x) * 2.0).rms_norm(1e-5) + x)
    product = graph((16, 64), lambda x: softmax(x.linear(x), None, 0.1))
    alone = [chain(floats(4, 8, seed=1)), product(floats(16, 64, seed=2))]
    for _ in range(5):
        assert np.array_equal(chain(floats(4, 8, seed=1)), alone[0])
        assert np.array_equal(product(floats(16, 64, seed=2)), alone[1])


def test_graphs_of_equal_size_keep_their_own_memory_plans(graph: Callable[[Any, Any], Any]) -> None:
    x = floats(3, 4)
    norm = graph((3, 4), lambda x: x.reshape(4, 3).rms_norm(1.0))  # overwrites its operand
    norm(x)
    turn = graph((3, 4), lambda x: x.transpose(1, 0).contiguous())  # must not
    assert np.array_equal(turn(x), x.T)


def test_a_graph_is_replanned_after_a_larger_one(backend: Backend) -> None:
    context = backend.context(3)  # full: x, x + x and the sum of both
    x = context.input("x", (2,), F32)
    y = context.output(x + x + x)
    for size in (4, 256, 1024):
        data = [(x, np.array([1, 2], np.float32))]
        assert backend.compute(context, data, [y]).outputs[0].tolist() == [3, 6]
        larger = Graph(backend, (size, size), lambda x: (x.silu() + x).tanh())
        larger(floats(size, size))
        larger.close()
    context.close()


def test_casting_to_the_same_type_copies(graph: Callable[[Any, Any], Any]) -> None:
    x = floats(3, 4)
    graph((3, 4), lambda x: x.reshape(4, 3) * 1.0)(x)
    assert np.array_equal(graph((3, 4), lambda x: x.transpose(1, 0).cast(F32))(x), x.T)


def test_a_view_is_read_in_the_order_of_its_shape(graph: Callable[[Any, Any], Any]) -> None:
    x = floats(3, 4)
    assert np.array_equal(graph((3, 4), lambda x: x.transpose(1, 0))(x), x.T)
    assert np.array_equal(graph((3, 4), lambda x: x.strided((3, 2), (16,), 8))(x), x[:, 2:])


def test_a_graph_has_several_outputs(backend: Backend, context: Context) -> None:
    x = context.input("x", (3,), F32)
    middle = context.output(x * 2.0)
    last = context.output((middle + x).silu())
    data = [(x, np.zeros(3, np.float32) + 1)]
    found = backend.compute(context, data, [last, middle]).outputs
    assert found[1].tolist() == [2, 2, 2]
    assert found[0][0] == pytest.approx(3 / (1 + np.exp(-3)))


def test_compute_time_is_measured(graph: Callable[[Any, Any], Any], backend: Backend) -> None:
    double = graph((2,), lambda x: x + x)
    data = [(double.x, np.zeros(2, np.float32))]
    assert backend.compute(double.context, data, [double.y]).compute_ns > 0


def test_threads_that_compute_concurrently_do_not_interfere(
    graph: Callable[[Any, Any], Any],
) -> None:
    graphs = [graph((8,), lambda x, n=n: x * float(n)) for n in range(4)]

    def work(n: int) -> None:
        for seed in range(30):
            x = floats(8, seed=seed)
            assert np.array_equal(graphs[n](x), x * np.float32(n))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))


# Inputs


@pytest.mark.seed("S28")
def test_an_unused_input_accepts_data(backend: Backend, context: Context) -> None:
    unused, x = context.input("unused", (5,), I32), context.input("x", (2,), F32)
    y = context.output(x + x)
    data = [(unused, integers(1, 2, 3, 4, 5)), (x, np.array([1, 2], np.float32))]
    assert backend.compute(context, data, [y]).outputs[0].tolist() == [2, 4]


@pytest.mark.parametrize(
    "data",
    [
        np.zeros(5, np.float32),
        np.zeros(7, np.float32),
        np.zeros(0, np.float32),
        np.zeros(6, np.float64),
        np.zeros(6, np.float16),
        np.zeros(6, np.int32),  # as many bytes
        np.zeros((6, 2), np.float32)[:, 0],  # not contiguous
    ],
)
def test_data_that_does_not_fill_its_input_is_refused(
    graph: Callable[[Any, Any], Any],
    data: npt.NDArray[np.float64]
    | npt.NDArray[np.float16]
    | npt.NDArray[np.int32]
    | npt.NDArray[np.float32],
) -> None:
    double = graph((2, 3), lambda x: x + x)
    with pytest.raises(ShapeError, match="does not fill the input"):
        double(data)
    x = floats(2, 3)
    assert np.array_equal(double(x), 2 * x)  # and the backend goes on


def test_only_outputs_can_be_read(backend: Backend, context: Context) -> None:
    x = context.input("x", (32,), F32)
    packed = context.output((x + x).cast(GGMLType.Q8_0))
    other = x * 3.0
    data = [(x, np.zeros(32, np.float32))]
    for tensor in (packed, other):
        with pytest.raises(ShapeError, match="not an output"):
            backend.compute(context, data, [tensor])


# Memory


@pytest.mark.seed("S39", "S40")
def test_after_reserving_the_largest_graph_nothing_grows() -> None:
    backend = Backend(threads=1, max_nodes=64)
    shapes = [(64, 64), (1, 1), (16, 64), (63, 64), (64, 64), (2, 3)]
    build = lambda x: softmax((x.silu() + x).rms_norm(1e-5).linear(x))  # noqa: E731
    largest = Graph(backend, (64, 64), build)
    backend.reserve(largest.context)
    reserved = backend.graph_bytes
    assert reserved > 0
    for shape in shapes:
        small = Graph(backend, shape, build)
        small(floats(*shape))
        assert backend.graph_bytes == reserved
        small.close()
    largest.close()
    backend.close()


@pytest.mark.seed("S41")
def test_a_graph_for_which_there_is_no_memory_is_refused(
    backend: Backend, graph: Callable[[Any, Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    double = graph((2,), lambda x: x + x)
    with monkeypatch.context() as patch:
        patch.setattr(gg, "ggml_backend_sched_reserve", lambda *_: False)
        with pytest.raises(OutOfMemoryError, match="no memory for a graph"):
            backend.reserve(double.context)
        with pytest.raises(OutOfMemoryError, match="no memory for a graph"):
            double(np.array([1, 2], np.float32))
    assert double(np.array([1, 2], np.float32)).tolist() == [2, 4]
    with monkeypatch.context() as patch:
        patch.setattr(gg, "ggml_backend_sched_alloc_graph", lambda *_: False)
        assert double(np.array([1, 2], np.float32)).tolist() == [2, 4]  # it still has its places
        with pytest.raises(OutOfMemoryError, match="no memory for a graph"):
            graph((3,), lambda x: x + x)(np.array([1, 2, 3], np.float32))
    assert double(np.array([1, 2], np.float32)).tolist() == [2, 4]


def test_a_device_that_fails_is_reported(
    graph: Callable[[Any, Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    double = graph((2,), lambda x: x + x)
    monkeypatch.setattr(gg, "ggml_backend_sched_graph_compute", lambda *_: 2)
    with pytest.raises(ComputeError, match="status 2"):
        double(np.array([1, 2], np.float32))


def test_free_memory_is_reported() -> None:
    available = Backend.available_memory()
    assert 0 < available <= psutil.virtual_memory().total


# Its life


def test_a_closed_graph_is_not_computed(graph: Callable[[Any, Any], Any]) -> None:
    double = graph((2,), lambda x: x + x)
    double.close()
    with pytest.raises(ComputeError, match="the graph is closed"):
        double(np.array([1, 2], np.float32))


def test_a_graph_may_not_be_larger_than_the_backend_allows(backend: Backend) -> None:
    with pytest.raises(ComputeError, match="1025 tensors is over the limit of 1024"):
        backend.context(1025)


@pytest.mark.seed("S75")
def test_the_number_of_threads_is_the_one_asked_for() -> None:
    backend = Backend(threads=3, max_nodes=16)
    assert backend.threads == 3
    backend.close()


def test_a_cpu_that_fails_to_initialize_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gg, "ggml_backend_dev_init", lambda *_: None)
    with pytest.raises(ComputeError, match=r"cannot initialize the device CPU\.0"):
        Backend(threads=1)


def test_close_waits_for_computing_and_may_be_called_twice() -> None:
    backend = Backend(threads=1, max_nodes=64)
    chain = Graph(backend, (256, 256), lambda x: x.linear(x).linear(x))
    done = backend.submit(chain.context, [(chain.x, floats(256, 256))], [chain.y])
    backend.close()
    assert done.done()
    assert done.exception() is None
    backend.close()
    for _ in range(2):
        with pytest.raises(ComputeError, match="the backend is closed"):
            chain(floats(256, 256))
    with pytest.raises(ComputeError, match="the backend is closed"):
        backend.reserve(chain.context)
    chain.close()


def test_a_persistent_input_is_written_once(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory is not used for anything else, so the next computing finds it there."""
    context = backend.context(64)
    kept = context.input("kept", (4, 8), F32, is_persistent=True)
    other = context.input("other", (4, 8), F32)
    total = kept + other
    for _ in range(6):  # steps that would like the memory
        total = total + other
    total = context.output(total)
    fixed, written = floats(4, 8), []
    fixed.flags.writeable = False
    real = gg.ggml_backend_tensor_set
    monkeypatch.setattr(
        gg, "ggml_backend_tensor_set", lambda t, *rest: (written.append(t), real(t, *rest))
    )
    for step in range(3):
        values = floats(4, 8, seed=step)
        found = backend.compute(context, [(kept, fixed), (other, values)], [total]).outputs[0]
        np.testing.assert_allclose(found, fixed + 7 * values, rtol=1e-4, atol=1e-5)
    assert len(written) == 2 + 1 + 1
    another = floats(4, 8, seed=9)
    found = backend.compute(context, [(kept, another), (other, values)], [total]).outputs[0]
    np.testing.assert_allclose(found, another + 7 * values, rtol=1e-4, atol=1e-5)
    context.close()
