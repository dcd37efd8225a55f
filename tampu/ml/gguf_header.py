"""The header of a GGUF file: its metadata and the offsets of its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tampu.ml.metadata import Metadata
from tampu.ml.types import GGMLType


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """The name, type, shape and offset of a tensor.

    `shape` has the slowest dimension first and 1 to 4 dimensions; `offset` counts from the start
    of the file, or of the first of a split one.
    """

    name: str
    shape: tuple[int, ...]
    type: GGMLType
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class FilePart:
    """A file with a model or a part of it; `start` is the offset of its first byte in the model."""

    path: Path
    size_bytes: int
    start: int = 0


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """The header of a GGUF file that passed every check; `tensors` in the order of the file.

    `kinds` has GGUF's number of each key's type, which Python's values do not have. A split model
    is one such file; `path` is then the first of its `parts`.
    """

    path: Path
    version: int
    alignment: int
    metadata: Metadata
    kinds: Mapping[str, int]
    tensors: dict[str, TensorInfo]
    data_offset: int
    size_bytes: int
    parts: tuple[FilePart, ...]

    def find(self, offset: int) -> tuple[Path, int]:
        """Return the file with the byte at an offset of the model, and the offset in that file."""
        part = next(part for part in reversed(self.parts) if part.start <= offset)
        return part.path, offset - part.start
