"""The header of a GGUF file: its metadata and the offsets of its tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tampu.errors import ModelFileError
from tampu.ml.metadata import Metadata
from tampu.ml.types import GGMLType

StoredBytes: TypeAlias = npt.NDArray[np.uint8]
"""The bytes of a tensor as they are in the file."""


@dataclass(frozen=True, slots=True)
class Computation:
    """How the data of a tensor follows from other tensors of the file.

    `compute` takes the bytes of each source and returns an array with as many bytes as the result.
    """

    sources: tuple[TensorInfo, ...]
    compute: Callable[[Sequence[StoredBytes]], npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """The name, type, shape and offset of a tensor.

    `shape` has the slowest dimension first and 1 to 4 dimensions; `offset` counts from the start
    of the file, or of the first of a split one. A tensor with a computation is not in the file.
    """

    name: str
    shape: tuple[int, ...]
    type: GGMLType
    offset: int
    size_bytes: int
    computation: Computation | None = None


@dataclass(frozen=True, slots=True)
class FilePart:
    """A file with a model or a part of it; `start` is the offset of its first byte in the model."""

    path: Path
    size_bytes: int
    start: int = 0


# The prefixes of tensors; an audio encoder may have nothing but its projector.
_ENCODERS = {"vision": ("v.",), "audio": ("a.", "mm.a.")}


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

    @property
    def modalities(self) -> tuple[str, ...]:
        """What the file has encoders of: vision, audio."""
        return tuple(
            modality
            for modality, prefixes in _ENCODERS.items()
            if any(name.startswith(prefixes) for name in self.tensors)
        )

    def find(self, offset: int) -> tuple[Path, int]:
        """Return the file with the byte at an offset of the model, and the offset in that file."""
        part = next(part for part in reversed(self.parts) if part.start <= offset)
        return part.path, offset - part.start


def computed(info: TensorInfo, read: Callable[[TensorInfo], StoredBytes]) -> npt.NDArray[Any]:
    """Return the data of a tensor with a computation, contiguous.

    Raises:
        ModelFileError: if the computation gives another number of bytes than the tensor has.
    """
    if info.computation is None:
        raise ModelFileError(f"tensor {info.name}", "is in the file")
    values = info.computation.compute([read(source) for source in info.computation.sources])
    if values.nbytes != info.size_bytes:
        reason = f"{values.nbytes} bytes were computed, not {info.size_bytes}"
        raise ModelFileError(f"tensor {info.name}", reason)
    return np.ascontiguousarray(values)
