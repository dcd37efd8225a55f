"""Writes GGUF files whose tensors are computed on all cores, with few chunks in memory.

The chunks of all tensors form one queue: while one is written, the next are computed, across tensor
boundaries, so that no core is idle. Unchanged tensors are copied from their file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from io import SEEK_END, FileIO
from itertools import accumulate
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import psutil

from tampu.convert.gguf_header import alignment_of, encode_header
from tampu.errors import ModelFileError
from tampu.ml.atomic_file import atomic_file, check_free_space, translate_os_errors
from tampu.ml.threads import usable_cpus
from tampu.ml.types import GGMLType

ProgressCallback: TypeAlias = Callable[[int, int], None]
TensorChunk: TypeAlias = npt.NDArray[np.generic]
Write: TypeAlias = Callable[[bytes | memoryview], object]  # takes all bytes

_AHEAD = 2  # chunks computed or waiting, per thread
_BUFFER_BYTES = 256 << 10  # for copies: fits a core's cache


@dataclass(frozen=True, slots=True)
class FileRange:
    """Bytes of another file, to be copied."""

    path: Path
    offset: int
    size_bytes: int


ChunkSource: TypeAlias = Callable[[], TensorChunk] | FileRange


@dataclass(frozen=True, slots=True)
class TensorToWrite:
    """A tensor's entry in the file's table, and the lazy source of its bytes.

    `parts` is called on the writing thread and yields the bytes in order; its functions are called
    on any thread.
    """

    name: str
    shape: tuple[int, ...]  # slowest dimension first
    type: GGMLType
    parts: Callable[[], Iterable[ChunkSource]]

    @property
    def size_bytes(self) -> int:
        """The size of the data, without padding."""
        rows = int(np.prod(self.shape[:-1], dtype=np.int64))
        return rows * self.type.size_of(self.shape[-1])


@dataclass(frozen=True)
class PlannedFile:
    """A GGUF file that is not written yet.

    Attributes:
        metadata: all keys, including general.architecture.
        tensors: in the order of the file.
        kinds: GGUF's type numbers of keys that keep their type.
    """

    metadata: Mapping[str, object]
    tensors: Sequence[TensorToWrite]
    kinds: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def offsets(self) -> list[int]:
        """The offset of each tensor in the data, and the end of the last."""
        alignment = alignment_of(self.metadata)
        sizes = [-(-tensor.size_bytes // alignment) * alignment for tensor in self.tensors]
        return [0, *accumulate(sizes)]

    @cached_property
    def _header(self) -> bytes:
        entries = [
            (tensor.name, tensor.shape, tensor.type, offset)
            for tensor, offset in zip(self.tensors, self.offsets, strict=False)
        ]
        return encode_header(self.metadata, entries, self.kinds)

    @property
    def size_bytes(self) -> int:
        """The size of the file."""
        return len(self._header) + self.offsets[-1]

    def write(
        self,
        destination: Path,
        *,
        threads: int | None = None,
        progress: ProgressCallback | None = None,
    ) -> None:
        """Write the file atomically.

        Args:
            destination: the file; an existing one is replaced.
            threads: number of worker threads; None: one per core.
            progress: called with the bytes written and the total, on this thread.

        Raises:
            DiskFullError: if the file does not fit on the disk.
            ModelFileError: if it cannot be written, or a metadata value has no GGUF type.
        """
        with translate_os_errors(destination, ModelFileError), atomic_file(destination) as file:
            check_free_space(destination, self.size_bytes)
            self.write_to(file.write, threads=threads, progress=progress)

    def write_to(
        self, write: Write, *, threads: int | None = None, progress: ProgressCallback | None = None
    ) -> None:
        """Pass the file's bytes to `write` in order; other arguments as in `PlannedFile.write`."""
        write(self._header)
        done = 0
        threads = threads or len(usable_cpus()) or psutil.cpu_count() or 1
        for index, data in _in_order(self.tensors, threads):
            done += _put(write, data)
            end = self.offsets[index] + self.tensors[index].size_bytes
            if done > end:
                raise ModelFileError(self.tensors[index].name, "has more data than its shape")
            if done == end:
                write(bytes(self.offsets[index + 1] - end))
                done = self.offsets[index + 1]
            if progress:
                progress(done, self.offsets[-1])
        if done != self.offsets[-1]:
            raise ModelFileError("tensors", "one has less data than its shape")


def _in_order(
    tensors: Sequence[TensorToWrite], threads: int
) -> Iterator[tuple[int, memoryview | FileRange]]:
    """Yield each tensor's index with its bytes, computed slightly ahead of the consumer."""
    flight: deque[tuple[int, Future[TensorChunk] | FileRange]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="tampu-write")
    try:
        for index, tensor in enumerate(tensors):
            for part in tensor.parts():
                flight.append((index, part if isinstance(part, FileRange) else pool.submit(part)))
                if len(flight) > _AHEAD * threads:
                    yield _bytes_of(*flight.popleft())
        while flight:
            yield _bytes_of(*flight.popleft())
    finally:
        pool.shutdown(cancel_futures=True)


def _bytes_of(
    index: int, part: Future[TensorChunk] | FileRange
) -> tuple[int, memoryview | FileRange]:
    if isinstance(part, FileRange):
        return index, part
    return index, np.ascontiguousarray(part.result()).data.cast("B")


def _put(write: Write, data: memoryview | FileRange) -> int:
    """Write bytes, or copy them from a file; return how many."""
    if not isinstance(data, FileRange):
        write(data)
        return len(data)
    with data.path.open("rb", buffering=0) as source:
        if source.seek(0, SEEK_END) < data.offset + data.size_bytes:
            raise ModelFileError(data.path.name, "the file ends within its data")
        _pump(write, source, data)
    return data.size_bytes


def _pump(write: Write, source: FileIO, source_range: FileRange) -> None:
    """Copy through one small buffer.

    Large buffers cost more in new pages than the copy itself. sendfile is slower too: it copies
    page by page if the two files' offsets differ within a page, as they do here.
    """
    buffer = memoryview(bytearray(min(_BUFFER_BYTES, source_range.size_bytes)))
    source.seek(source_range.offset)
    left = source_range.size_bytes
    while left:
        count = source.readinto(buffer[:left])
        if not count:
            raise ModelFileError(source_range.path.name, "the file ends within its data")
        write(buffer[:count])
        left -= count
