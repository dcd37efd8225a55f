"""Views that begin where a GPU cannot read from: Vulkan's drivers say what they are aligned to."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.devices import StandIn
from support.graphs import floats, integers

from tampu.ml import Backend, Context, GGMLType, Tensor
from tampu.ml.device_map import DeviceMap
from tampu.ml.devices import Device
from tampu.ml.library import gg

F32 = GGMLType.F32
ROWS, WIDTH = 64, 33  # so many that ggml multiplies tiles of matrices
COLUMNS = WIDTH - 1
OFFSET = 4

Build = Callable[[Tensor], Tensor]


def of_device(device: Device) -> Iterator[tuple[Backend, Context]]:
    backend = Backend(threads=1, max_nodes=64, device_map=DeviceMap((device,), (0,), embedding=0))
    context = backend.context()
    yield backend, context
    context.close()
    backend.close()


@pytest.fixture
def on_gpu(gpu: Device) -> Iterator[tuple[Backend, Context]]:
    yield from of_device(gpu)


@pytest.mark.parametrize(
    ("build", "wanted"),
    [
        (lambda x: x.linear(x), lambda x: x @ x.T),
        (lambda x: x.layer_norm(0.0), lambda x: (x - x.mean(1)[:, None]) / x.std(1)[:, None]),
        (lambda x: x.rms_norm(0.0), lambda x: x / np.sqrt((x * x).mean(1))[:, None]),
        (lambda x: x * x, lambda x: x * x),
    ],
    ids=["product", "norm", "rms norm", "elements"],
)
def test_a_gpu_computes_with_a_view_that_begins_anywhere(
    on_gpu: tuple[Backend, Context],
    build: Build,
    wanted: Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]],
) -> None:
    backend, context = on_gpu
    x = context.input("x", (ROWS, WIDTH), F32)
    y = context.output(build(x.strided((ROWS, COLUMNS), x.strides[:1], OFFSET)))
    data = floats(ROWS, WIDTH)
    found = backend.compute(context, [(x, data)], [y]).outputs[0]
    np.testing.assert_allclose(found, wanted(data[:, 1:]), rtol=1e-3, atol=1e-4)


def test_a_gpu_looks_up_rows_by_indices_that_begin_anywhere(
    on_gpu: tuple[Backend, Context],
) -> None:
    backend, context = on_gpu
    x, at = context.input("x", (ROWS, WIDTH), F32), context.input("at", (7,), GGMLType.I32)
    y = context.output(x.rows(at.strided((6,), (), OFFSET)))
    data, indices = floats(ROWS, WIDTH), integers(0, 9, 8, 1, 63, 2, 30)
    found = backend.compute(context, [(x, data), (at, indices)], [y]).outputs[0]
    np.testing.assert_array_equal(found, data[indices[1:]])


@pytest.mark.parametrize(
    ("name", "alignment", "offset", "is_copied"),
    [("Vulkan", 64, 60, True), ("Vulkan", 64, 64, False), ("Vulkan", 256, 64, True),
     ("CUDA", 64, 60, False)],
)  # fmt: skip
def test_only_a_view_that_it_cannot_read_in_place_is_copied(
    name: str, alignment: int, offset: int, is_copied: bool
) -> None:
    stand_in = StandIn(alignment=alignment)
    for backend, context in of_device(replace(stand_in.device, name=name)):
        x = context.input("x", (4, 64), F32)
        inner = x.strided((4, 48), x.strides[:1], offset)
        outer = inner.strided((4, 32), inner.strides[:1], 64)  # the copy begins anew
        for view in (inner, outer):
            operation = gg.ggml_op_name(view.pointer.contents.op).decode()
            assert operation == (
                "CONT" if is_copied and (view is inner or alignment > 64) else "VIEW"
            )
        data: Any = floats(4, 64)
        y = context.output(outer)
        found = backend.compute(context, [(x, data)], [y]).outputs[0]
        np.testing.assert_array_equal(found, data[:, offset // 4 + 16 :][:, :32])
    assert stand_in.taken == 0


def test_the_cpu_reads_a_view_in_place(backend: Backend) -> None:
    context = backend.context(8)
    x = context.input("x", (4, 64), F32)
    view = x.strided((4, 32), x.strides[:1], OFFSET)
    assert view.pointer.contents.op == gg.GGML_OP_VIEW
    context.close()
