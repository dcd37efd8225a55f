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
    """A file that holds a model or a part of it; `start` is where its first byte counts as."""

    path: Path
    size_bytes: int
    start: int = 0


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """The head of a GGUF file that passed every check; `tensors` in the order of the file.

    `kinds` has GGUF's number of each key's type, which Python's values have lost. A model that is
    split over several files is as one; `path` is the first of its `parts` then.
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
        """Return the file that has the byte at an offset of the whole, and where it is there."""
        part = next(part for part in reversed(self.parts) if part.start <= offset)
        return part.path, offset - part.start
