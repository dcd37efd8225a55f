"""Writes the parts of a file of text and encoders as files that llama.cpp loads."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np

from tampu.convert.writer import ChunkSource, FileRange, PlannedFile, TensorToWrite
from tampu.errors import UnsupportedModelError
from tampu.gguf_compat import as_llama_cpp
from tampu.gguf_compat.divide import has_encoder, projector_part, text_part
from tampu.gguf_compat.tensors import data_of
from tampu.ml.gguf_file import FilePart, GGUFFile, StoredBytes, TensorInfo
from tampu.ml.metadata import Metadata, Value


def plan_part(part: GGUFFile) -> PlannedFile:
    """Return the file for a header whose tensors are in other files or made of them."""
    tensors = [
        TensorToWrite(info.name, info.shape, info.type, partial(_parts, part, info))
        for info in part.tensors.values()
    ]
    kinds = {key: kind for key, kind in part.kinds.items() if key in part.metadata}
    return PlannedFile(dict(part.metadata), tensors, kinds)


def _parts(file: GGUFFile, info: TensorInfo) -> Iterator[ChunkSource]:
    if info.computation is None:
        path, offset = file.find(info.offset)
        yield FileRange(path, offset, info.size_bytes)
    else:
        yield lambda: data_of(info, partial(_read, file))


def _read(file: GGUFFile, info: TensorInfo) -> StoredBytes:
    path, offset = file.find(info.offset)
    return np.fromfile(path, np.uint8, info.size_bytes, offset=offset)


def divide(plan: PlannedFile) -> tuple[PlannedFile, PlannedFile]:
    """Return the text model and the mmproj file for a model with encoders, not written yet.

    Raises:
        UnsupportedModelError: if it has no encoder, or none of a kind that is known.
    """
    file = as_llama_cpp(_header(plan))
    if not has_encoder(file):
        raise UnsupportedModelError(
            "the checkpoint has no encoder of images or sounds: leave out --mmproj"
        )
    return _plan_of(text_part(file), plan), _plan_of(projector_part(file), plan)


def _header(plan: PlannedFile) -> GGUFFile:
    """Return the header of a planned file; offsets count from the start of its data."""
    pairs = zip(plan.tensors, plan.offsets, strict=False)
    tensors = {
        tensor.name: TensorInfo(tensor.name, tensor.shape, tensor.type, offset, tensor.size_bytes)
        for tensor, offset in pairs
    }
    path, size = Path("checkpoint"), plan.offsets[-1]
    metadata = Metadata(cast("Mapping[str, Value]", plan.metadata))
    return GGUFFile(path, 3, 1, metadata, plan.kinds, tensors, 0, size, (FilePart(path, size),))


def _plan_of(part: GGUFFile, plan: PlannedFile) -> PlannedFile:
    """Return the planned file of a part, with the data of the whole's tensors."""

    def source(info: TensorInfo) -> TensorToWrite:
        return plan.tensors[bisect_right(plan.offsets, info.offset) - 1]

    def read(info: TensorInfo) -> StoredBytes:
        index = bisect_right(plan.offsets, info.offset) - 1
        data = bytearray()
        for chunk in plan.tensors[index].parts():
            data += _bytes_of(chunk)
        start = info.offset - plan.offsets[index]
        return np.frombuffer(data, np.uint8)[start : start + info.size_bytes]

    def planned(info: TensorInfo) -> TensorToWrite:
        if info.computation is None:
            return replace(source(info), name=info.name)
        parts: list[ChunkSource] = [lambda: data_of(info, read)]
        return TensorToWrite(info.name, info.shape, info.type, lambda: parts)

    return PlannedFile(dict(part.metadata), [planned(info) for info in part.tensors.values()])


def _bytes_of(chunk: ChunkSource) -> bytes:
    if isinstance(chunk, FileRange):
        return np.fromfile(chunk.path, np.uint8, chunk.size_bytes, offset=chunk.offset).tobytes()
    return np.ascontiguousarray(chunk()).tobytes()
