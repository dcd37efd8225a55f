"""Quantizes a GGUF file: the same keys and tensors, with matrices in the types of a quant mix.

The file is memory-mapped and computed on all cores, a few rows at a time; memory does not grow
with the model.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tampu.convert.quant_mix import (
    FileType,
    ModelShape,
    Override,
    choose_types,
    fallbacks,
    file_type,
)
from tampu.convert.storage import encode_rows, row_ranges
from tampu.convert.writer import (
    ChunkSource,
    FileRange,
    PlannedFile,
    ProgressCallback,
    TensorToWrite,
)
from tampu.errors import RequestError, UnsupportedModelError
from tampu.ml.gguf import GGUFFile, TensorInfo, read_gguf
from tampu.ml.mapping import map_file
from tampu.ml.quantize import dequantize
from tampu.ml.split import PREFIX as SPLIT
from tampu.ml.types import GGMLType

QUANTIZATION_VERSION = 2  # of ggml's block formats
_COPY_BYTES = 64 << 20
_LAYER = re.compile(r"blk\.(\d+)\.")


def quantize_file(
    source: Path,
    destination: Path,
    type: str,
    *,
    overrides: Sequence[Override] = (),
    requantize: bool = False,
    threads: int | None = None,
    progress: ProgressCallback | None = None,
) -> list[str]:
    """Write the model `source` as `destination` with its matrices in other types, atomically.

    Args:
        source: a GGUF file, usually in F16, BF16 or F32.
        destination: the file to write; an existing one is replaced.
        type: the name of a quant mix, such as Q4_K_M; see `quant_mix.FILE_TYPES`.
        overrides: types for tensors whose names match; the first match wins.
        requantize: accept quantized tensors, whose errors add up.
        threads: number of worker threads; None: one per core.
        progress: called with the bytes written and the total.

    Returns:
        a line for each tensor that could not get the type of its override.

    Raises:
        ModelNotFoundError: if there is no file `source`.
        ModelFileError: if it is damaged or contains a NaN, or the result cannot be written.
        UnsupportedModelError: if the type is unknown, or the file is already quantized.
        RequestError: if both files are the same, or an override matches no matrix.
        DiskFullError: if the result does not fit on the disk.
    """
    plan = plan_quantization(source, type, overrides=overrides, requantize=requantize)
    if destination.exists() and destination.samefile(source):
        raise RequestError(f"{destination} is the input file: write to another one")
    plan.write(destination, threads=threads, progress=progress)
    types = {tensor.name: (tensor.type, tensor.shape) for tensor in plan.tensors}
    return fallbacks(types, overrides)


def plan_quantization(
    source: Path, type: str, *, overrides: Sequence[Override] = (), requantize: bool = False
) -> PlannedFile:
    """Return the file that `quantize_file` writes, with its errors."""
    kind = file_type(type)
    file = read_gguf(source)
    chosen = planned_types(file, kind, overrides)
    if not requantize:
        _check_unquantized(file, chosen)
    ours: dict[str, object] = {
        "general.file_type": kind.number,
        "general.quantization_version": QUANTIZATION_VERSION,
    }
    theirs = {key: value for key, value in file.metadata.items() if not key.startswith(SPLIT)}
    kinds = {key: file.kinds[key] for key in theirs if key not in ours}
    mapping = map_file(file)
    ordered = sorted(file.tensors.values(), key=lambda info: tensor_order(info.name))
    tensors = [_tensor(file, mapping, info, chosen) for info in ordered]
    return PlannedFile({**theirs, **ours}, tensors, kinds)


def tensor_order(name: str) -> tuple[int, str]:
    """Return a sort key for llama-quantize's order: by layer, those without one first; by name."""
    layer = _LAYER.match(name)
    return (int(layer[1]) if layer else -1, name)


def planned_types(
    file: GGUFFile, kind: FileType, overrides: Sequence[Override] = ()
) -> dict[str, GGMLType]:
    """Return the types that a quant mix gives to a file's matrices; other tensors keep theirs."""
    shapes = {info.name: info.shape for info in file.tensors.values()}
    architecture = file.metadata.architecture
    keys = {key.removeprefix(f"{architecture}."): value for key, value in file.metadata.items()}
    return choose_types(shapes, kind, ModelShape.of(architecture, keys), overrides)


def _check_unquantized(file: GGUFFile, chosen: Mapping[str, GGMLType]) -> None:
    for name, wanted in chosen.items():
        stored = file.tensors[name].type
        if stored.is_quantized and stored != wanted:
            raise UnsupportedModelError(
                f"{file.path.name} is already quantized ({name} is {stored.name}): start from its "
                "F16, BF16 or F32 file, or accept more loss with --requantize"
            )


def _tensor(
    file: GGUFFile, mapping: mmap.mmap, info: TensorInfo, chosen: Mapping[str, GGMLType]
) -> TensorToWrite:
    kind = chosen.get(info.name, info.type)
    parts: Callable[[], Iterable[ChunkSource]]
    if kind == info.type:
        parts = partial(_copied, *file.find(info.offset), info.size_bytes)
    else:
        parts = partial(_converted, mapping, info, kind)
    return TensorToWrite(info.name, info.shape, kind, parts)


def _copied(path: Path, offset: int, size: int) -> Iterator[FileRange]:
    for begin in range(0, size, _COPY_BYTES):
        yield FileRange(path, offset + begin, min(_COPY_BYTES, size - begin))


def _converted(mapping: mmap.mmap, info: TensorInfo, kind: GGMLType) -> Iterator[ChunkSource]:
    columns = info.shape[-1]
    row_bytes = info.type.size_of(columns)
    for first, last in row_ranges(info.size_bytes // row_bytes, columns):
        begin = info.offset + first * row_bytes
        yield partial(_encoded, mapping, begin, info, (last - first, columns), kind)


def _encoded(
    mapping: mmap.mmap, begin: int, info: TensorInfo, shape: tuple[int, int], kind: GGMLType
) -> npt.NDArray[np.generic]:
    size = info.type.size_of(shape[0] * shape[1])
    data = np.frombuffer(mapping, np.uint8, size, begin)
    return encode_rows(info.name, partial(dequantize, data, info.type, shape), kind)
