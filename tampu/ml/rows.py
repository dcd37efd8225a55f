"""Rows of tensors as bytes, copied from and to the memory of any device.

Other rows may be computed meanwhile: what is copied must only not be written by a graph.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tampu.errors import ShapeError
from tampu.ml.library import gg
from tampu.ml.tensor import Tensor

Bytes: TypeAlias = npt.NDArray[np.uint8]
Indices: TypeAlias = npt.NDArray[np.int32]


def read_rows(tensor: Tensor, rows: Indices, *, transposed: bool = False) -> Bytes:
    """Return some rows of a tensor of two dimensions, one after the other.

    Args:
        tensor: weights or a cache, (rows, features), or (features, rows) if transposed.
        rows: I32, (n,).
        transposed: the rows are columns; the bytes are (features, n) then.

    Raises:
        ShapeError: for rows outside the tensor.
    """
    data = np.empty(len(rows) * row_bytes(tensor, transposed=transposed), np.uint8)
    _copy(gg.ggml_backend_tensor_get, tensor, rows, data, transposed=transposed)
    return data


def write_rows(tensor: Tensor, rows: Indices, data: Bytes, *, transposed: bool = False) -> None:
    """Replace some rows of a tensor by bytes that `read_rows` returned.

    Raises:
        ShapeError: for rows outside the tensor, or too few or too many bytes.
    """
    if data.nbytes != len(rows) * row_bytes(tensor, transposed=transposed):
        raise ShapeError(f"{data.nbytes} bytes are not {len(rows)} rows of {tensor!r}")
    data = np.ascontiguousarray(data)
    _copy(gg.ggml_backend_tensor_set, tensor, rows, data, transposed=transposed)


def host_memory(tensor: Tensor) -> memoryview | None:
    """Return the memory of weights or a cache, to read files into it; None on other devices."""
    if not gg.ggml_backend_buffer_is_host(tensor.pointer.contents.buffer):
        return None
    memory = ctypes.c_char * tensor.size_bytes
    return memoryview(memory.from_address(int(tensor.pointer.contents.data))).cast("B")


def row_bytes(tensor: Tensor, *, transposed: bool = False) -> int:
    """Return the bytes of a row of a tensor of two dimensions."""
    return tensor.size_bytes // tensor.shape[1 if transposed else 0]


def _copy(
    copy: Callable[..., object], tensor: Tensor, rows: Indices, data: Bytes, *, transposed: bool
) -> None:
    count = tensor.shape[1 if transposed else 0]
    if len(rows) and not (rows.min() >= 0 and rows.max() < count):
        raise ShapeError(f"{tensor!r} has no row {rows.max()}")
    address = data.ctypes.data
    if not transposed:
        size = row_bytes(tensor)
        for at, first, run in row_runs(rows):
            copy(tensor.pointer, address + at * size, first * size, run * size)
        return
    size = tensor.type.size_of(1)
    for at, first, run in row_runs(rows):
        for feature in range(tensor.shape[0]):
            to, where = feature * len(rows) + at, feature * count + first
            copy(tensor.pointer, address + to * size, where * size, run * size)


def row_runs(rows: Indices) -> Iterator[tuple[int, int, int]]:
    """Yield the consecutive rows: the index of the first in `rows`, the first, their number."""
    if not len(rows):
        return
    starts = [0, *(np.flatnonzero(np.diff(rows) != 1) + 1).tolist()]
    for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
        yield start, int(rows[start]), end - start
