"""Encodes the header of a GGUF file, version 3: counts, metadata, tensor table.

    magic version tensors keys | key type value ... | name dims type offset ... | padding

Python values get GGUF's usual types; a key copied from another file keeps its type, because
readers are strict about types. Source: the GGUF specification (docs/gguf.md of ggml).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import TypeAlias, cast

import numpy as np
import numpy.typing as npt

from tampu.errors import ModelFileError
from tampu.ml.metadata import StringArray
from tampu.ml.types import GGMLType

ALIGNMENT = 32
ALIGNMENT_KEY = "general.alignment"

_MAGIC = b"GGUF"
_VERSION = 3
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY, _INT64 = 4, 5, 6, 7, 8, 9, 11
_FORMATS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", _UINT32: "<I", _INT32: "<i", _FLOAT32: "<f", _BOOL: "<?",
    10: "<Q", _INT64: "<q", 12: "<d",
}  # fmt: skip
_UINT32_RANGE = range(1 << 32)
_ITEM_KINDS = {np.dtype(name): kind for kind, name in _FORMATS.items()}


# Name, shape (slowest dimension first), type, and offset from the start of the tensor data.
TensorEntry: TypeAlias = tuple[str, tuple[int, ...], GGMLType, int]


def encode_header(
    metadata: Mapping[str, object],
    entries: Sequence[TensorEntry],
    kinds: Mapping[str, int] | None = None,
) -> bytes:
    """Return everything before the tensor data, padded to the file's alignment.

    Args:
        metadata: keys and values.
        entries: the tensors, in the order of the file.
        kinds: GGUF's type numbers of keys that keep their type.
    """
    kinds = kinds or {}
    parts = [_MAGIC, struct.pack("<IQQ", _VERSION, len(entries), len(metadata))]
    for key, value in metadata.items():
        parts += [_text(key), _value(key, value, kinds.get(key))]
    for name, shape, kind, offset in entries:
        parts.append(_text(name))
        parts.append(struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1]))
        parts.append(struct.pack("<IQ", int(kind), offset))
    header = b"".join(parts)
    return header + bytes(-len(header) % alignment_of(metadata))


def alignment_of(metadata: Mapping[str, object]) -> int:
    """Return the alignment of tensors in bytes."""
    value = metadata.get(ALIGNMENT_KEY, ALIGNMENT)
    if not isinstance(value, int) or value < 1:
        raise ModelFileError(ALIGNMENT_KEY, f"{value!r} is not a positive integer")
    return value


def _text(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(raw)) + raw


def _value(key: str, value: object, kind: int | None) -> bytes:
    """Return a value's type number and the value."""
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _text(value)
    if isinstance(value, bool | int | float):
        number = _number_kind(value) if kind is None else kind
        return struct.pack("<I", number) + _packed(key, number, value)
    item_kind, count, data = _items(key, value)
    return struct.pack("<IIQ", _ARRAY, item_kind, count) + data


def _number_kind(value: object) -> int:
    if isinstance(value, bool):
        return _BOOL
    if isinstance(value, float):
        return _FLOAT32
    return _UINT32 if value in _UINT32_RANGE else _INT64


def _packed(key: str, kind: int, value: float) -> bytes:
    try:
        return struct.pack(_FORMATS[kind], value)
    except (struct.error, OverflowError, KeyError) as error:
        raise ModelFileError(key, f"{value!r} is not a value that GGUF holds") from error


def _items(key: str, value: object) -> tuple[int, int, bytes]:
    """Return the kind of an array's items, how many they are, and the items."""
    if isinstance(value, StringArray):
        return _STRING, len(value), value.data
    if isinstance(value, np.ndarray):
        return _array(key, value)
    if isinstance(value, list | tuple) and value:
        if isinstance(value[0], str):
            return _STRING, len(value), _texts(key, value)
        return _array(key, _numbers(key, value))
    raise ModelFileError(key, f"{value!r} is not a value that GGUF holds")


def _texts(key: str, texts: Sequence[object]) -> bytes:
    """Return texts behind their lengths; in steps that are loops in C, for they are 400,000."""
    if set(map(type, texts)) - {str}:
        raise ModelFileError(key, "is an array of texts and of something else")
    raws = _encoded(cast("Sequence[str]", texts))
    lengths = list(map(len, raws))
    packed = {length: struct.pack("<Q", length) for length in set(lengths)}
    parts = [b""] * (2 * len(raws))
    parts[0::2] = map(packed.__getitem__, lengths)
    parts[1::2] = raws
    return b"".join(parts)


def _encoded(texts: Sequence[str]) -> list[bytes]:
    try:
        return [text.encode() for text in texts]
    except UnicodeEncodeError:  # bytes of a damaged text, as they were read
        return [text.encode("utf-8", "surrogateescape") for text in texts]


def _numbers(key: str, values: Sequence[object]) -> npt.NDArray[np.generic]:
    """Return a list's numbers in the type that llama.cpp's converter chooses."""
    array = np.array(values)
    if {type(value) for value in values} - {type(values[0])} or array.dtype.kind not in "bif":
        raise ModelFileError(key, f"{values!r} is not a value that GGUF holds")
    if array.dtype.kind == "f":
        return array.astype("<f4")
    if array.dtype.kind == "i" and np.all(array == array.astype("<i4")):
        return array.astype("<i4")
    return array


def _array(key: str, values: npt.NDArray[np.generic]) -> tuple[int, int, bytes]:
    kind = _ITEM_KINDS.get(values.dtype)
    if kind is None or values.ndim != 1:
        raise ModelFileError(key, f"an array of {values.dtype} is not a value that GGUF holds")
    return kind, len(values), np.ascontiguousarray(values).tobytes()
