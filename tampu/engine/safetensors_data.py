"""Writes arrays in the format of safetensors, and reads those back that were written here.

    8 bytes       the length of the header, little-endian
    the header    JSON: for each name its type, its shape and where its data begins and ends
    the data      one array after the other, beginning at a multiple of 64 bytes

Source: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.generic]

_TYPES: Mapping[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "I32": np.dtype("<i4"),
}
_NAMES = {str(kind): name for name, kind in _TYPES.items()}
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class ArrayShape:
    """The type and the shape of an array: F32, F16 or I32."""

    type: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """The size of its data."""
        size: int = _TYPES[self.type].itemsize
        return math.prod(self.shape) * size


@dataclass(frozen=True, slots=True)
class Layout:
    """Where arrays are in a file.

    Attributes:
        head: the first bytes of the file.
        offsets: of each array's data, in the file.
        size_bytes: of the whole file.
    """

    head: bytes
    offsets: Mapping[str, int]
    size_bytes: int


def lay_out(arrays: Mapping[str, ArrayShape], metadata: Mapping[str, str]) -> Layout:
    """Return the layout of a file with these arrays and texts."""
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    offsets, end = {}, 0
    for name, array in arrays.items():
        offsets[name] = end
        data = [end, end + array.size_bytes]
        header[name] = {"dtype": array.type, "shape": array.shape, "data_offsets": data}
        end = data[1]
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    head = len(text).to_bytes(8, "little") + text
    placed = {name: len(head) + offset for name, offset in offsets.items()}
    return Layout(head, placed, len(head) + end)


def encode(arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> bytes:
    """Return arrays of F32, F16 or I32 as the bytes of a file."""
    shapes = {
        name: ArrayShape(_NAMES[str(each.dtype)], each.shape) for name, each in arrays.items()
    }
    layout = lay_out(shapes, metadata)
    return b"".join([layout.head, *(each.tobytes() for each in arrays.values())])


def decode(data: bytes) -> tuple[dict[str, Array], dict[str, str]]:
    """Return the arrays of such a file, which share its memory, and its texts."""
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    metadata = header.pop("__metadata__", {})
    arrays = {}
    for name, each in header.items():
        begin, end = each["data_offsets"]
        kind = _TYPES[each["dtype"]]
        values = np.frombuffer(data, kind, (end - begin) // kind.itemsize, start + begin)
        arrays[name] = values.reshape(each["shape"])
    return arrays, metadata
