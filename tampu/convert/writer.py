"""Writes a GGUF file, version 3, through the `gguf` package: one tensor in memory at a time.

The file appears under its name only when it is whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from tampu.errors import ModelFileError
from tampu.ml.types import GGMLType

_MAX_UINT32 = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class TensorToWrite:
    """A tensor's entry in the file's table, and how to get its bytes when their turn comes."""

    name: str
    shape: tuple[int, ...]  # slowest dimension first
    type: GGMLType
    encode: Callable[[], npt.NDArray[np.uint8]]

    @property
    def size_bytes(self) -> int:
        """The size of the data, without padding."""
        rows = int(np.prod(self.shape[:-1], dtype=np.int64))
        return rows * self.type.size_of(self.shape[-1])


def write_gguf(
    destination: Path, metadata: Mapping[str, object], tensors: Iterable[TensorToWrite]
) -> None:
    """Write the file, first beside its place under another name.

    Args:
        destination: the file; replaced if it is there.
        metadata: all keys, with general.architecture among them.
        tensors: in the order of the file.

    Raises:
        ModelFileError: if the file can't be written, or a metadata value is of no GGUF type.
    """
    partial = destination.with_name(f".{destination.name}.{os.getpid()}.partial")
    try:
        _write(partial, metadata, list(tensors))
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        partial.replace(destination)
    except OSError as error:
        raise ModelFileError(str(destination), f"cannot be written: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)


def _write(path: Path, metadata: Mapping[str, object], tensors: list[TensorToWrite]) -> None:
    keys = dict(metadata)
    writer = gguf.GGUFWriter(path, str(keys.pop("general.architecture")))
    try:
        for key, value in keys.items():
            _add(writer, key, value)
        for tensor in tensors:
            writer.add_tensor_info(
                tensor.name,
                tensor.shape,
                np.dtype(np.float32),  # not looked at: the type is given
                tensor.size_bytes,
                gguf.GGMLQuantizationType(int(tensor.type)),
            )
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for tensor in tensors:
            writer.write_tensor_data(tensor.encode())
    finally:
        writer.close()


def _add(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int() if 0 <= value <= _MAX_UINT32:
            writer.add_uint32(key, value)
        case int():
            writer.add_int64(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_key_value(key, value, gguf.GGUFValueType.STRING)
        case [_, *_]:
            writer.add_array(key, value)
        case _:
            raise ModelFileError(key, f"{value!r} is not a value that GGUF holds")
