"""Memory that a device copies from and to by itself."""

import numpy as np
import pytest

from tampu.ml.devices import find_devices
from tampu.ml.library import gg
from tampu.ml.pinned import PinnedMemory

CPU = next(each for each in find_devices() if each.kind == "cpu")


def test_it_grows_and_is_used_again() -> None:
    memory = PinnedMemory(CPU.buffer_type)
    first = memory.take(1000)
    assert first is not None
    first[:] = 7
    again = memory.take(10)
    assert again is not None
    assert again.ctypes.data == first.ctypes.data
    assert again.tolist() == [7] * 10
    larger = memory.take(2**20)
    assert larger is not None
    larger[:] = np.arange(2**20, dtype=np.uint8)
    assert len(larger) == 2**20
    memory.close()
    memory.close()


def test_there_may_be_none() -> None:
    assert CPU.host_buffer_type is None
    assert PinnedMemory(None).take(8) is None
    memory = PinnedMemory(CPU.buffer_type)
    assert memory.take(5 * 2**20) is None
    assert memory.take(8) is not None
    memory.close()


def test_where_the_driver_has_none_left_it_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(
        gg, "ggml_backend_buft_alloc_buffer", lambda _kind, size: asked.append(size)
    )
    memory = PinnedMemory(CPU.buffer_type)
    assert [memory.take(8), memory.take(16)] == [None, None]
    assert asked == [8]
    memory.close()
