"""Writes a GGUF file whose tensors are computed on all cores, a few chunks in memory at a time.

The chunks of all tensors form one queue: while the first is written, the next are computed, across
the borders of tensors, so that no core waits for the end of one. What stays as it is in another
file is copied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from io import FileIO
from itertools import accumulate
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import psutil

from tampu.convert.head import Place, alignment_of, encode_head
from tampu.convert.output import whole_file
from tampu.errors import ModelFileError
from tampu.ml.types import GGMLType

Progress: TypeAlias = Callable[[int, int], None]
Chunk: TypeAlias = npt.NDArray[np.generic]

_AHEAD = 2  # chunks computed or waiting, for each thread
_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes of another file that are copied as they are."""

    path: Path
    offset: int
    size_bytes: int


Part: TypeAlias = Callable[[], Chunk] | Span


@dataclass(frozen=True, slots=True)
class TensorToWrite:
    """A tensor's line in the file's table, and how to get its bytes when their turn comes.

    `parts` is called on the writing thread and yields the bytes in order; its functions are called
    on any thread.
    """

    name: str
    shape: tuple[int, ...]  # slowest dimension first
    type: GGMLType
    parts: Callable[[], Iterable[Part]]

    @property
    def size_bytes(self) -> int:
        """The size of the data, without padding."""
        rows = int(np.prod(self.shape[:-1], dtype=np.int64))
        return rows * self.type.size_of(self.shape[-1])


def write_gguf(
    destination: Path,
    metadata: Mapping[str, object],
    tensors: Iterable[TensorToWrite],
    *,
    kinds: Mapping[str, int] | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> None:
    """Write the file; it appears under its name when it is whole.

    Args:
        destination: the file; replaced if it is there.
        metadata: all keys, with general.architecture among them.
        tensors: in the order of the file.
        kinds: GGUF's number of the type of keys that are to keep theirs.
        threads: that compute chunks; None: one for each core.
        progress: called with the bytes written and their total, on this thread.

    Raises:
        ModelFileError: if the file can't be written, or a metadata value is of no GGUF type.
    """
    listed = list(tensors)
    alignment = alignment_of(metadata)
    sizes = [-(-tensor.size_bytes // alignment) * alignment for tensor in listed]
    offsets = [0, *accumulate(sizes)]
    places = [
        Place(tensor.name, tensor.shape, tensor.type, offset)
        for tensor, offset in zip(listed, offsets, strict=False)
    ]
    head = encode_head(metadata, places, kinds)
    with whole_file(destination, len(head) + offsets[-1]) as file:
        _write(file, head)
        for tensor, chunk in _in_order(listed, threads or usable_cores()):
            if isinstance(chunk, Span):
                _copy(file, chunk)
            else:
                _write(file, chunk)
            done = file.tell() - len(head)
            end = offsets[tensor] + listed[tensor].size_bytes
            if done > end:
                raise ModelFileError(listed[tensor].name, "has more data than its shape says")
            if done == end:
                _write(file, bytes(offsets[tensor + 1] - done))
            if progress:
                progress(done, offsets[-1])
        if file.tell() != len(head) + offsets[-1]:
            raise ModelFileError(str(destination), "a tensor has less data than its shape says")


def usable_cores() -> int:
    """Return how many processors this process may use."""
    process = psutil.Process()
    if hasattr(process, "cpu_affinity"):  # not on macOS
        return len(process.cpu_affinity()) or 1
    return psutil.cpu_count() or 1


def _in_order(tensors: Sequence[TensorToWrite], threads: int) -> Iterator[tuple[int, Chunk | Span]]:
    """Yield each tensor's index with its chunks, computed a little ahead of the reader."""
    flight: deque[tuple[int, Future[Chunk] | Span]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="tampu-write")
    try:
        for index, tensor in enumerate(tensors):
            for part in tensor.parts():
                flight.append((index, part if isinstance(part, Span) else pool.submit(part)))
                if len(flight) > _AHEAD * threads:
                    yield _finished(flight.popleft())
        while flight:
            yield _finished(flight.popleft())
    finally:
        pool.shutdown(cancel_futures=True)


def _finished(item: tuple[int, Future[Chunk] | Span]) -> tuple[int, Chunk | Span]:
    index, chunk = item
    return index, chunk if isinstance(chunk, Span) else chunk.result()


def _write(file: FileIO, data: bytes | Chunk) -> None:
    """Write all of the data; one call of the system may take less."""
    rest = memoryview(data) if isinstance(data, bytes) else np.ascontiguousarray(data).data
    rest = rest.cast("B")
    while rest.nbytes:
        rest = rest[file.write(rest) :]


def _copy(file: FileIO, span: Span) -> None:
    """Copy bytes of another file through one small buffer: new pages would cost more than it."""
    buffer = memoryview(bytearray(min(_BUFFER_BYTES, span.size_bytes)))
    with span.path.open("rb", buffering=0) as source:
        source.seek(span.offset)
        left = span.size_bytes
        while left:
            count = source.readinto(buffer[:left])
            if not count:
                raise ModelFileError(span.path.name, "the file ends inside its data")
            _write(file, np.frombuffer(buffer[:count], np.uint8))
            left -= count
