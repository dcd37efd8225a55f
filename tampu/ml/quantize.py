"""Conversion between float32 and the storage types, by ggml's own reference code.

Both functions work on host memory, row by row, with as many threads as asked for (ggml's code
runs without the interpreter's lock). ggml's tables for some types are made once and kept.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from tampu.errors import ComputeError, RequestError, ShapeError
from tampu.ml.library import gg
from tampu.ml.types import GGMLType

_FLOATS = ctypes.POINTER(ctypes.c_float)

# The types below 4 bits that need an importance matrix are left out.
QUANTIZABLE = frozenset(
    GGMLType[name]
    for name in (
        *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
        *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"),
    )
)


def quantize(
    values: npt.NDArray[np.float32], kind: GGMLType, *, threads: int = 1
) -> npt.NDArray[np.uint8]:
    """Return float32 values in a storage type.

    Args:
        values: [rows, columns]; more dimensions in front count as rows.
        kind: the type to store them in, one of `QUANTIZABLE`.
        threads: how many threads share the rows.

    Returns:
        [rows, bytes of a row], as a GGUF file has them.

    Raises:
        RequestError: if nothing can be stored in `kind`.
        ShapeError: if a row isn't a whole number of blocks, or the values aren't float32.
        ComputeError: if a value is NaN or infinite and the type has blocks, which it would spoil.
    """
    if kind not in QUANTIZABLE:
        names = ", ".join(sorted(known.name for known in QUANTIZABLE))
        raise RequestError(f"cannot quantize to {kind.name}; choose one of {names}")
    if values.dtype != np.float32 or values.ndim < 1:
        raise ShapeError(f"quantize takes an array of float32, not {values.dtype}{values.shape}")
    columns = values.shape[-1]
    row_bytes = _row_bytes(columns, kind)
    source = np.ascontiguousarray(values).reshape(-1, columns)
    result = np.empty((len(source), row_bytes), dtype=np.uint8)

    def convert(start: int, stop: int) -> None:
        part = source[start:stop]
        if kind.is_quantized and not np.isfinite(part).all():
            raise ComputeError(f"cannot quantize to {kind.name}: a value is NaN or infinite")
        source_at, result_at = part.ctypes.data_as(_FLOATS), result[start:stop].ctypes.data
        gg.ggml_quantize_chunk(kind, source_at, result_at, 0, stop - start, columns, None)

    _over_rows(convert, len(source), threads)
    return result


def dequantize(
    data: bytes | memoryview | npt.NDArray[np.uint8],
    kind: GGMLType,
    shape: tuple[int, ...],
    *,
    threads: int = 1,
) -> npt.NDArray[np.float32]:
    """Return stored values as float32.

    Args:
        data: the bytes of a tensor as a GGUF file has them.
        kind: the type that they are stored in.
        shape: of the tensor, slowest dimension first.
        threads: how many threads share the rows.

    Raises:
        RequestError: if ggml has no conversion from `kind` to float32.
        ShapeError: if a row isn't a whole number of blocks, or `data` has another size.
    """
    source = np.frombuffer(data, dtype=np.uint8)
    columns = shape[-1] if shape else 0
    row_bytes = _row_bytes(columns, kind)
    result = np.empty(shape, dtype=np.float32)
    rows = result.reshape(-1, columns) if columns else result.reshape(0, 1)
    if source.nbytes != len(rows) * row_bytes:
        raise ShapeError(
            f"{source.nbytes} bytes are not a tensor {shape} of {kind.name}, "
            f"which has {len(rows) * row_bytes}"
        )
    if kind is GGMLType.F32:
        return source.view(np.float32).reshape(shape).copy()
    to_float = _to_float(kind)

    def convert(start: int, stop: int) -> None:
        part = rows[start:stop]
        to_float(source[start * row_bytes :].ctypes.data, part.ctypes.data_as(_FLOATS), part.size)

    _over_rows(convert, len(rows), threads)
    return result


def _row_bytes(columns: int, kind: GGMLType) -> int:
    if columns % kind.block_size:
        raise ShapeError(
            f"a row of {columns} is not a multiple of {kind.name}'s block of {kind.block_size}"
        )
    return kind.size_of(columns)


def _to_float(kind: GGMLType) -> Callable[..., Any]:
    convert = gg.ggml_get_type_traits(kind).contents.to_float
    if not convert:
        raise RequestError(f"{kind.name} cannot be converted to float32")
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, _FLOATS, ctypes.c_int64)(
        ctypes.cast(convert, ctypes.c_void_p).value or 0
    )


def _over_rows(convert: Callable[[int, int], None], rows: int, threads: int) -> None:
    """Call `convert(start, stop)` for parts of the rows, in several threads if asked."""
    if threads <= 1 or rows < 2:
        convert(0, rows)
        return
    step = -(-rows // threads)
    bounds = [(start, min(start + step, rows)) for start in range(0, rows, step)]
    with ThreadPoolExecutor(threads) as pool:
        for future in [pool.submit(convert, start, stop) for start, stop in bounds]:
            future.result()
