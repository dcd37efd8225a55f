"""Tensors made of other tensors of a file: ranges of rows, and those that must be computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tampu.errors import ModelFileError
from tampu.ml.gguf_file import Computation, StoredBytes, TensorInfo
from tampu.ml.gguf_file import computed as compute_data
from tampu.ml.quantize import dequantize
from tampu.ml.types import GGMLType

Floats = npt.NDArray[np.float32]


def rows_of(info: TensorInfo, name: str, start: int, count: int) -> TensorInfo:
    """Return some rows of a tensor, which are a range of its bytes."""
    row_bytes = info.size_bytes // info.shape[0]
    return replace(
        info,
        name=name,
        shape=(count, *info.shape[1:]),
        offset=info.offset + start * row_bytes,
        size_bytes=count * row_bytes,
    )


def computed(
    name: str,
    shape: tuple[int, ...],
    sources: Sequence[TensorInfo],
    compute: Callable[..., Floats],
    type_: GGMLType = GGMLType.F32,
) -> TensorInfo:
    """Return a tensor, in F32 or F16, that `compute` makes of the sources' values."""

    def run(stored: Sequence[StoredBytes]) -> npt.NDArray[Any]:
        values = [_values(info, data) for info, data in zip(sources, stored, strict=True)]
        result = compute(*values)
        return np.ascontiguousarray(result, np.float16 if type_ is GGMLType.F16 else np.float32)

    size = type_.size_of(math.prod(shape))
    start = sources[0].offset if sources else 0
    return TensorInfo(name, shape, type_, start, size, Computation(tuple(sources), run))


def _values(info: TensorInfo, stored: StoredBytes) -> Floats:
    if info.computation is not None:
        raise ModelFileError(f"tensor {info.name}", "is computed already")
    return dequantize(stored, info.type, info.shape)


def to_f32(info: TensorInfo) -> TensorInfo:
    """Return a tensor in F32."""
    if info.type is GGMLType.F32:
        return info
    return computed(info.name, info.shape, [info], lambda values: values)


def joined(name: str, parts: Sequence[TensorInfo], *, stack: bool = False) -> TensorInfo:
    """Return the rows of several tensors in one, or the tensors themselves along a new dimension.

    The type is that of the parts, or F32 if they are of several.

    Raises:
        ModelFileError: if their rows differ in length.
    """
    first = parts[0]
    for part in parts[1:]:
        if part.shape[0 if stack else 1 :] != first.shape[0 if stack else 1 :]:
            reason = f"has the shape {list(part.shape)}, {first.name} {list(first.shape)}"
            raise ModelFileError(f"tensor {part.name}", reason)
    rows = sum(part.shape[0] for part in parts)
    shape = (len(parts), *first.shape) if stack else (rows, *first.shape[1:])
    if len({part.type for part in parts}) > 1:
        return computed(name, shape, parts, lambda *values: np.concatenate(values).reshape(shape))
    size = sum(part.size_bytes for part in parts)
    computation = Computation(tuple(parts), np.concatenate)
    return TensorInfo(name, shape, first.type, first.offset, size, computation)


def chosen_rows(info: TensorInfo, name: str, rows: Sequence[int]) -> TensorInfo:
    """Return a tensor of these rows of a matrix, in this order; the type remains."""

    def run(stored: Sequence[StoredBytes]) -> StoredBytes:
        return np.ascontiguousarray(stored[0].reshape(info.shape[0], -1)[[*rows]])

    size = info.size_bytes // info.shape[0] * len(rows)
    shape = (len(rows), *info.shape[1:])
    return TensorInfo(name, shape, info.type, info.offset, size, Computation((info,), run))


def frames_of(info: TensorInfo, names: tuple[str, str], channels: int = 3) -> list[TensorInfo]:
    """Return the kernels of two frames of a patch convolution over images and time.

    Args:
        info: (outputs · channels, 2, height, width).
        names: of the results, (outputs, channels, height, width).
        channels: of an image.

    Raises:
        ModelFileError: if the shape is another.
    """
    rows, frames, *size = (*info.shape, 0, 0, 0)[:4]
    if len(info.shape) != 4 or frames != 2 or rows % channels:
        reason = f"has the shape {list(info.shape)}, not two frames of {channels} channels"
        raise ModelFileError(f"tensor {info.name}", reason)
    shape = (rows // channels, channels, *size)

    def frame(index: int) -> Callable[[Floats], Floats]:
        return lambda values: values[:, index].reshape(shape)

    return [computed(name, shape, [info], frame(index)) for index, name in enumerate(names)]


def data_of(info: TensorInfo, read: Callable[[TensorInfo], StoredBytes]) -> npt.NDArray[np.uint8]:
    """Return a tensor's bytes, computed or read."""
    if info.computation is None:
        return read(info)
    return compute_data(info, read).reshape(-1).view(np.uint8)
