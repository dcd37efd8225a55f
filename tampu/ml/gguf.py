"""Reads and validates the header of GGUF files, versions 2 and 3, little endian.

Every count, length, type, dimension and offset is compared with the rest of the file before it is
used or memory is allocated for it, so that a hostile file costs no more time or memory than its own
size. No tensor data is read. Native code gets a file only after it was validated here.

    magic version tensors keys | key type value ... | name dims type offset ... | pad | tensor data
                                                                                data_offset ^

Source: the GGUF specification (docs/gguf.md of ggml). Not supported: version 1, big-endian files.
"""

from __future__ import annotations

import math
import os
import stat
import struct
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from tampu.errors import ModelFileError, ModelNotFoundError
from tampu.ml.bytes import Cursor
from tampu.ml.gguf_file import FilePart, GGUFFile, TensorInfo
from tampu.ml.metadata import Metadata, StringArray, Value
from tampu.ml.split import join_parts, part_count
from tampu.ml.types import GGMLType

__all__ = [
    "FilePart",
    "GGMLType",
    "GGUFFile",
    "Metadata",
    "StringArray",
    "TensorInfo",
    "Value",
    "read_gguf",
]

MAX_KEYS = 65_536
MAX_TENSORS = 65_536
MAX_STRING_BYTES = 16 << 20
MAX_ARRAY_LENGTH = 64 << 20
MAX_KEY_BYTES = 65_535
MAX_NAME_BYTES = 63
MAX_DIMENSIONS = 4
MAX_ALIGNMENT = 4096

_VERSIONS = (2, 3)
_MIN_KEY_BYTES = 8 + 1 + 4 + 1  # length, one byte of key, type, the smallest value
_MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8  # length, a byte of name, count, dimension, type, offset

_UINT32, _BOOL, _STRING, _ARRAY = 4, 7, 8, 9
_NUMBERS = {  # GGUF's number of a value type: how struct and NumPy call it
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    _BOOL: "<B",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRUCTS = {number: struct.Struct(name) for number, name in _NUMBERS.items()}


def read_gguf(path: str | Path) -> GGUFFile:
    """Read and check the header of a GGUF file; of a split model, give the first part.

    Raises:
        ModelNotFoundError: if there is no file at `path`, or a part of the model is missing.
        ModelFileError: if it isn't a regular file or a valid GGUF file; names the field.
        UnsupportedModelError: if it is not the first part of a split model.
    """
    first = _read_one(Path(path))
    is_whole = "split.count" not in first.metadata or part_count(first.metadata) == 1
    return first if is_whole else join_parts(first, _read_one)


def _read_one(path: Path) -> GGUFFile:
    descriptor = _open(path)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ModelFileError("file", "is not a regular file")
        return _read(path, Cursor(descriptor, status.st_size))
    except ModelFileError as error:
        if error.field == "magic":
            raise
        raise ModelFileError(error.field, error.reason, f"{path}: {error}") from error
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    # Without O_NONBLOCK, opening a FIFO would wait for its other end.
    try:
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        raise ModelNotFoundError(f"there is no model file at {str(path)!r}") from error
    except OSError as error:
        raise ModelFileError("file", f"cannot be opened: {error.strerror}") from error


def _read(path: Path, cursor: Cursor) -> GGUFFile:
    if cursor.size < 4 or cursor.take(4, "magic") != b"GGUF":
        raise ModelFileError("magic", "not a GGUF file", f"not a GGUF file: {path}")
    version = _read_version(cursor)
    tensor_count = cursor.u64("tensor count")
    key_count = cursor.u64("key count")
    _check_count("tensor count", tensor_count, MAX_TENSORS, cursor.left, _MIN_TENSOR_BYTES)
    _check_count("key count", key_count, MAX_KEYS, cursor.left, _MIN_KEY_BYTES)
    values = _read_keys(cursor, key_count)
    alignment = _alignment(values)
    metadata = Metadata({key: value for key, (_, value) in values.items()})
    tensors = _read_tensors(cursor, tensor_count)
    data_offset = -(-cursor.position // alignment) * alignment
    _check_layout(tensors.values(), alignment, cursor.size - data_offset)
    placed = {
        name: replace(info, offset=info.offset + data_offset) for name, info in tensors.items()
    }
    kinds = {key: kind for key, (kind, _) in values.items()}
    whole = (FilePart(path, cursor.size),)
    return GGUFFile(
        path, version, alignment, metadata, kinds, placed, data_offset, cursor.size, whole
    )


def _read_version(cursor: Cursor) -> int:
    version = cursor.u32("version")
    if version in _VERSIONS:
        return version
    if version & 0xFFFF == 0 and version:
        raise ModelFileError(
            "version", "is that of a big-endian file; only little-endian files are supported"
        )
    raise ModelFileError("version", f"{version} is not known; versions 2 and 3 are")


def _check_count(field: str, count: int, limit: int, left: int, each: int) -> None:
    if count > limit:
        raise ModelFileError(field, f"{count} is more than the limit of {limit}")
    if count * each > left:
        raise ModelFileError(field, f"{count} records cannot fit in the {left} bytes that follow")


def _text(raw: bytes, field: str) -> str:
    """Decode a name or key, which must be UTF-8 without NUL and not empty."""
    if not raw:
        raise ModelFileError(field, "is empty")
    if b"\0" in raw:
        raise ModelFileError(field, "holds a NUL")
    return _decode(raw, field)


def _decode(raw: bytes, field: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise ModelFileError(field, "is not valid UTF-8") from error


def _quoted(name: str) -> str:
    """Return a name from the file for use in a message: one line, not too long."""
    return repr(name if len(name) <= 80 else name[:77] + "...")


# Keys and values


def _read_keys(cursor: Cursor, count: int) -> dict[str, tuple[int, Value]]:
    """Return each key's value together with GGUF's number of its type."""
    values: dict[str, tuple[int, Value]] = {}
    for index in range(count):
        raw = cursor.string(f"key {index} length", MAX_KEY_BYTES)
        key = _text(raw, f"key {index}")
        field = f"key {_quoted(key)}"
        if key in values:
            raise ModelFileError(field, "occurs twice")
        kind = cursor.u32(f"{field} type")
        values[key] = kind, _read_value(cursor, kind, key, field)
    return values


def _read_value(cursor: Cursor, kind: int, key: str, field: str) -> Value:
    strict = key.startswith("general.")
    if kind == _STRING:
        raw = cursor.string(f"{field} value", MAX_STRING_BYTES)
        return _decode(raw, f"{field} value") if strict else raw.decode("utf-8", "surrogateescape")
    if kind == _ARRAY:
        value = _read_array(cursor, field)
        if strict and isinstance(value, StringArray):
            for index in range(len(value)):
                _decode(value.raw(index), f"{field} item {index}")
        return value
    if kind not in _NUMBERS:
        raise ModelFileError(f"{field} type", f"{kind} is not known")
    (number,) = _STRUCTS[kind].unpack(cursor.take(_STRUCTS[kind].size, f"{field} value"))
    if kind != _BOOL:
        return number  # type: ignore[no-any-return]  # struct's result is an int or a float
    if number > 1:
        raise ModelFileError(f"{field} value", f"{number} is neither true (1) nor false (0)")
    return bool(number)


def _read_array(cursor: Cursor, field: str) -> Value:
    kind = cursor.u32(f"{field} item type")
    count = cursor.u64(f"{field} item count")
    if kind == _ARRAY:
        raise ModelFileError(f"{field} item type", "is an array; arrays do not nest")
    if kind == _STRING:
        _check_count(f"{field} item count", count, MAX_ARRAY_LENGTH, cursor.left, 8)
        return StringArray(*cursor.strings(count, field, MAX_STRING_BYTES))
    if kind not in _NUMBERS:
        raise ModelFileError(f"{field} item type", f"{kind} is not known")
    dtype = np.dtype(_NUMBERS[kind])
    _check_count(f"{field} item count", count, MAX_ARRAY_LENGTH, cursor.left, dtype.itemsize)
    items = np.frombuffer(cursor.take(count * dtype.itemsize, f"{field} items"), dtype=dtype)
    if kind != _BOOL:
        return items
    if count and items.max() > 1:
        raise ModelFileError(f"{field} items", "hold a boolean that is neither 1 nor 0")
    return items.astype(np.bool_)


def _alignment(values: dict[str, tuple[int, Value]]) -> int:
    kind, value = values.get("general.alignment", (_UINT32, 32))
    field = "key 'general.alignment'"
    if kind != _UINT32 or not isinstance(value, int):
        raise ModelFileError(field, "must be a uint32")
    if not 8 <= value <= MAX_ALIGNMENT or value & (value - 1):
        raise ModelFileError(field, f"{value} is not a power of two from 8 to {MAX_ALIGNMENT}")
    return value


# Tensors


def _read_tensors(cursor: Cursor, count: int) -> dict[str, TensorInfo]:
    """Return the tensors with offsets from the start of the data, as the file has them."""
    tensors: dict[str, TensorInfo] = {}
    for index in range(count):
        info = _read_tensor(cursor, index)
        if info.name in tensors:
            raise ModelFileError(f"tensor {_quoted(info.name)}", "occurs twice")
        tensors[info.name] = info
    return tensors


def _read_tensor(cursor: Cursor, index: int) -> TensorInfo:
    raw = cursor.string(f"tensor {index} name", MAX_NAME_BYTES)
    name = _text(raw, f"tensor {index} name")
    field = f"tensor {_quoted(name)}"
    rank = cursor.u32(f"{field} dimensions")
    if not 1 <= rank <= MAX_DIMENSIONS:
        raise ModelFileError(f"{field} dimensions", f"{rank} is not from 1 to {MAX_DIMENSIONS}")
    shape = tuple(cursor.u64(f"{field} shape") for _ in range(rank))[::-1]
    number = cursor.u32(f"{field} type")
    offset = cursor.u64(f"{field} offset")
    if 0 in shape:
        raise ModelFileError(f"{field} shape", f"{list(shape)} has a dimension of zero")
    try:
        kind = GGMLType(number)
    except ValueError as error:
        raise ModelFileError(f"{field} type", f"{number} is not known") from error
    if shape[-1] % kind.block_size:
        reason = f"a row of {shape[-1]} is not a multiple of {kind.name}'s block of "
        raise ModelFileError(f"{field} shape", f"{reason}{kind.block_size}")
    return TensorInfo(name, shape, kind, offset, kind.size_of(math.prod(shape)))


def _check_layout(tensors: Iterable[TensorInfo], alignment: int, data_bytes: int) -> None:
    """Check that tensors are aligned, inside the data and disjoint; order and gaps are free."""
    end = 0
    previous = ""
    for info in sorted(tensors, key=lambda info: info.offset):
        field = f"tensor {_quoted(info.name)} offset"
        if info.offset % alignment:
            raise ModelFileError(field, f"{info.offset} is not a multiple of {alignment}")
        if info.offset + info.size_bytes > data_bytes:
            raise ModelFileError(
                field,
                f"{info.offset} and its {info.size_bytes} bytes reach past the end of the file, "
                f"which has {max(data_bytes, 0)} bytes of tensor data; is the file complete?",
            )
        if info.offset < end:
            raise ModelFileError(field, f"{info.offset} overlaps tensor {_quoted(previous)}")
        end = info.offset + info.size_bytes
        previous = info.name
