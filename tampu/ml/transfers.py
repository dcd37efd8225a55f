"""Copies data of tensors from and to the program's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tampu.errors import ShapeError
from tampu.ml.library import OpaquePointer, gg
from tampu.ml.pinned import PinnedMemory
from tampu.ml.tensor import Tensor
from tampu.ml.types import GGMLType

_DATA_TYPES: dict[GGMLType, np.dtype[np.generic]] = {
    GGMLType.F32: np.dtype(np.float32),
    GGMLType.F16: np.dtype(np.float16),
    GGMLType.I32: np.dtype(np.int32),
    GGMLType.I64: np.dtype(np.int64),
}


def check_data(tensor: Tensor, data: npt.NDArray[np.generic]) -> None:
    """Raise a ShapeError if an array does not fill an input."""
    fits = data.nbytes == tensor.size_bytes and data.dtype == _DATA_TYPES.get(tensor.type)
    if not fits or not data.flags.c_contiguous:
        raise ShapeError(f"{data.shape} {data.dtype} does not fill the input {tensor!r}")


def is_on_gpu(tensor: Tensor) -> bool:
    """Return whether a tensor is in memory that only a GPU can read."""
    buffer = tensor.pointer.contents.buffer
    return bool(buffer) and not gg.ggml_backend_buffer_is_host(buffer)


def write(tensor: Tensor, data: npt.NDArray[np.generic]) -> bool:
    """Copy an array into an input; an input that no node of the graph uses has no memory.

    Returns:
        Whether it is in the memory of a GPU.
    """
    check_data(tensor, data)
    if tensor.pointer.contents.buffer:
        gg.ggml_backend_tensor_set(tensor.pointer, data.ctypes.data, 0, data.nbytes)
    return is_on_gpu(tensor)


def read(tensor: Tensor) -> npt.NDArray[Any]:
    """Copy a computed tensor out.

    Raises:
        ShapeError: if it has no memory, or is of a type that numpy has not.
    """
    if not _is_readable(tensor):
        raise ShapeError(f"{tensor!r} is not an output of the graph")
    data = np.empty(tensor.shape, _DATA_TYPES[tensor.type])
    gg.ggml_backend_tensor_get(tensor.pointer, data.ctypes.data, 0, data.nbytes)
    return data


def begin_read(
    device: OpaquePointer, tensors: Sequence[Tensor], memory: PinnedMemory
) -> list[npt.NDArray[Any]] | None:
    """Let a device copy computed tensors out once it has computed them.

    Returns:
        Where they will be when the device has been waited for; None if there is no such memory, or
        the CPU has computed one of them.
    """
    if not all(_is_readable(tensor) and is_on_gpu(tensor) for tensor in tensors):
        return None
    pinned = memory.take(sum(tensor.size_bytes for tensor in tensors))
    if pinned is None:
        return None
    found, start = [], 0
    for tensor in tensors:
        part = pinned[start : start + tensor.size_bytes]
        gg.ggml_backend_tensor_get_async(
            device, tensor.pointer, part.ctypes.data, 0, tensor.size_bytes
        )
        found.append(part.view(_DATA_TYPES[tensor.type]).reshape(tensor.shape))
        start += tensor.size_bytes
    return found


def _is_readable(tensor: Tensor) -> bool:
    return tensor.type in _DATA_TYPES and bool(tensor.pointer.contents.buffer)
