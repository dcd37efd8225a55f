"""Packed weights on disk, so that the next start maps them instead of packing them again.

    <folder>/<digits of the key>.packed

The key identifies the bytes: the model's file, the layouts' version, the level of the kernels, and
which weights are packed in which order. A file starts with a header made from the key, and a CRC-32
of each piece of the weights; all are checked before use.

A process holds a shared lock on each file that it uses, and an exclusive lock on one that it writes
until the file has its name; only unlocked files are deleted. Locks end with their process.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import mmap
import os
import re
import struct
import threading
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tampu.errors import ModelFileError
from tampu.ml.atomic_file import AtomicFile, atomic_file, remove_unlocked
from tampu.ml.gguf import GGUFFile
from tampu.ml.kernels.library import LAYOUT_VERSION, Kernels
from tampu.threads import Threads

log = logging.getLogger("tampu.ml")

Bytes: TypeAlias = npt.NDArray[np.uint8]

FORMAT = 1  # of the file around the weights
PIECE = 8 * 2**20  # bytes with a checksum of their own
_MAGIC = b"TAMPUPAK"
_HEAD = struct.Struct("<8sIIQ32s")  # magic, format, layouts, bytes of weights, key
_PAGE = mmap.ALLOCATIONGRANULARITY
_BLOB = re.compile(r"(?:sha256[-:])?([0-9a-f]{64})")
_SUFFIX, _PARTIAL = ".packed", ".growing"


@dataclass(frozen=True, slots=True)
class Layout:
    """The identity and size of packed weights, in memory and in a file.

    Attributes:
        key: SHA-256 of all that determines their bytes.
        size_bytes: of all of them, with the gaps between them.
    """

    key: bytes
    size_bytes: int

    @classmethod
    def of(cls, file: GGUFFile, kernels: Kernels, sizes: dict[str, int], size_bytes: int) -> Layout:
        """Return the layout of a file's weights.

        Args:
            file: the model's, identified by its name if that is a digest, otherwise by path, size,
                time and inode.
            kernels: that pack them.
            sizes: of each packed weight in order, by its name.
            size_bytes: of all of them, with the gaps between them.

        Raises:
            ModelFileError: if the file cannot be read.
        """
        weights = [
            (name, int(info.type), info.shape, info.offset, size)
            for name, size in sizes.items()
            for info in (file.tensors[name],)
        ]
        sources = [file_identity(part.path, part.size_bytes) for part in file.parts]
        known = [FORMAT, LAYOUT_VERSION, kernels.level, sources, weights]
        return cls(hashlib.sha256(json.dumps(known).encode()).digest(), size_bytes)

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.key.hex()[:32] + _SUFFIX

    @property
    def pieces(self) -> int:
        """The number of checksums."""
        return -(-self.size_bytes // PIECE)

    @property
    def head(self) -> bytes:
        """The header of the file; the checksums follow."""
        return _HEAD.pack(_MAGIC, FORMAT, LAYOUT_VERSION, self.size_bytes, self.key)

    @property
    def start(self) -> int:
        """The offset of the weights in the file: a page boundary."""
        return -(-(_HEAD.size + 4 * self.pieces) // _PAGE) * _PAGE


class CachedWeights:
    """A file of packed weights, mapped read-only; it is not deleted until it is closed.

    Attributes:
        weights: all their bytes.
    """

    def __init__(self, layout: Layout, descriptor: int) -> None:
        """Map an open file that has the layout's size."""
        self._descriptor = descriptor
        mapping = np.frombuffer(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ), np.uint8)
        self.weights: Bytes = mapping[layout.start :]
        end = _HEAD.size + 4 * layout.pieces
        self._sums = np.frombuffer(mapping[_HEAD.size : end].tobytes(), "<u4")
        self._has_head = mapping[: _HEAD.size].tobytes() == layout.head

    def is_intact(self, threads: int, watch: Callable[[float], None]) -> bool:
        """Return whether the head and all checksums are right."""
        if not self._has_head:
            return False
        pieces = [self.weights[i : i + PIECE].data for i in range(0, self.weights.size, PIECE)]
        with Threads(threads, "tampu-verify") as pool:
            try:
                for number, found in enumerate(pool.map(zlib.crc32, pieces)):
                    if found != self._sums[number]:
                        return False
                    watch((number + 1) / len(pieces))
            finally:
                pool.shutdown(cancel_futures=True)
        return True

    def close(self) -> None:
        """Release the lock; the memory is unmapped with the last view of it."""
        os.close(self._descriptor)


@dataclass(frozen=True, slots=True)
class RepackCache:
    """A folder of packed weights.

    Attributes:
        folder: made when it is first written to.
        limit_bytes: how much may be in it; the least recently used files are deleted first.
    """

    folder: Path
    limit_bytes: int

    def find(
        self, layout: Layout, threads: int, watch: Callable[[float], None]
    ) -> CachedWeights | None:
        """Return the weights of a layout if they are there and intact; log if they are damaged.

        `watch` is called with the part that was checked; an exception from it is passed on.
        """
        path = self.folder / layout.name
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            log.warning("packed weights: %s cannot be opened: %s", path, error.strerror)
            return None
        try:
            kept = _open(layout, descriptor)
            if kept and kept.is_intact(threads, watch):
                with suppress(OSError):  # another user's file, or a read-only file system
                    os.utime(descriptor)
                return kept
            log.warning("packed weights: %s is damaged; packing the weights again", path)
        except BlockingIOError:  # it is being deleted
            pass
        except OSError as error:
            log.warning("packed weights: %s cannot be used: %s", path, error.strerror)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return None

    def keep(self, layout: Layout, weights: Bytes) -> threading.Thread:
        """Start a thread that writes packed weights while they are used, and return it."""
        thread = threading.Thread(
            target=self.write, args=(layout, weights), name="tampu-keep-packed"
        )
        thread.start()
        return thread

    def write(self, layout: Layout, weights: Bytes) -> bool:
        """Write packed weights; return whether they were written. Errors are logged.

        They are not if another process is writing them, or if files in use leave too little room.
        """
        path = self.folder / layout.name
        partial = path.with_name(f"{path.name}{_PARTIAL}")
        size = layout.start + layout.size_bytes
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not self._make_room(size, layout.name):
                log.warning("packed weights are not cached: %d bytes are above the limit", size)
                return False
            with atomic_file(path, partial=partial, mode=0o600) as file:
                _fill(file, layout, weights)
        except BlockingIOError:
            return False
        except OSError as error:
            log.warning("packed weights are not cached: %s: %s", path, error.strerror)
            return False
        log.info("packed weights: %d MiB cached in %s", size // 2**20, path)
        return True

    def _make_room(self, size: int, name: str) -> bool:
        """Delete the least recently used files; return whether there is room for `size` bytes.

        A file of the same name does not count, since it will be replaced.
        """
        for path in self.folder.glob(f"*{_SUFFIX}{_PARTIAL}"):  # of dead processes
            if path.name != name + _PARTIAL:
                remove_unlocked(path)
        found: list[tuple[int, int, Path]] = []
        for path in self.folder.glob(f"*{_SUFFIX}"):
            with suppress(FileNotFoundError):
                status = path.stat()
                found.append((status.st_mtime_ns, status.st_size, path))
        kept = sorted(each for each in found if each[2].name != name)
        total = size + sum(length for _, length, _ in kept)
        if size > self.limit_bytes:
            return False
        for _, length, path in kept:
            if total <= self.limit_bytes:
                break
            if remove_unlocked(path):
                total -= length
        return total <= self.limit_bytes


def _open(layout: Layout, descriptor: int) -> CachedWeights | None:
    """Take a shared lock on a file and map it, if it has the right size."""
    fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    if os.fstat(descriptor).st_size != layout.start + layout.size_bytes:
        return None
    return CachedWeights(layout, descriptor)


def file_identity(path: Path, size: int) -> Sequence[str | int]:
    """Return what says which file this is: its digest and size, or its path, size, time and inode.

    Raises:
        ModelFileError: if it cannot be read.
    """
    found = path.resolve()
    if (digest := _BLOB.fullmatch(found.name)) is not None:
        return digest[1], size
    try:
        status = found.stat()
    except OSError as error:
        raise ModelFileError("file", f"{path.name} cannot be read: {error.strerror}") from error
    return str(found), status.st_size, status.st_mtime_ns, status.st_ino


def _fill(file: AtomicFile, layout: Layout, weights: Bytes) -> None:
    """Write the weights, then the head and the checksums before them."""
    sums = bytearray()
    file.seek(layout.start)
    for offset in range(0, layout.size_bytes, PIECE):
        piece = weights[offset : offset + PIECE].data
        sums += struct.pack("<I", zlib.crc32(piece))
        file.write(piece)
    file.seek(0)
    file.write(layout.head + sums)
