"""A file that appears under its name only when it is whole, whatever happens on the way.

It is written beside its place as `.NAME.partial`, held by a lock, so that two processes never write
the same file and what a killed one left is taken over by the next.

    write .NAME.partial -> fsync -> rename to NAME -> fsync the folder

The disk begins with each step while the next is made, so that little is left for the fsync.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from tampu.errors import DiskFullError, ModelFileError

_STEP_BYTES = 32 << 20
_SYNC_FILE_RANGE_WRITE = 2  # of Linux: begin to write these pages, and don't wait


class WholeFile:
    """A file that takes all that it is given; the system may take less at a time."""

    def __init__(self, file: FileIO) -> None:
        self._file = file
        self._written = self._begun = 0  # bytes: given to the system, on their way to the disk
        self._begin = _begin_writing()

    def write(self, data: bytes | memoryview) -> None:
        """Add bytes."""
        rest = memoryview(data)
        while rest.nbytes:
            count = os.write(self._file.fileno(), rest)
            self._count(count)
            rest = rest[count:]

    def _count(self, size_bytes: int) -> None:
        self._written += size_bytes
        waiting = self._written - self._begun
        if self._begin is not None and waiting >= _STEP_BYTES:
            # It is advice: an error of the disk comes to light in the fsync at the end.
            self._begin(self._file.fileno(), self._begun, waiting, _SYNC_FILE_RANGE_WRITE)
            self._begun = self._written


def _begin_writing() -> Callable[[int, int, int, int], object] | None:
    """Return the C library's sync_file_range(descriptor, offset, size, flags); None without it."""
    if sys.platform != "linux":
        return None
    function = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if function is not None:
        function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return function


@contextmanager
def whole_file(destination: Path, size_bytes: int) -> Iterator[WholeFile]:
    """Yield an empty file to write; on success it is at `destination`, else nothing has changed.

    Args:
        destination: the file; replaced if it is there.
        size_bytes: how large it will be at the least.

    Raises:
        DiskFullError: if there is no room for it.
        ModelFileError: if it can't be written, or another process is writing it.
    """
    partial = destination.with_name(f".{destination.name}.partial")
    try:
        with _locked(partial, destination) as file:
            try:
                os.ftruncate(file.fileno(), 0)  # a killed process may have left bytes
                _require_room(destination, size_bytes)
                yield WholeFile(file)
                os.fsync(file.fileno())
                partial.replace(destination)
                sync_folder(destination.parent)
            except BaseException:
                partial.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise unwritable(destination, error) from error


def unwritable(path: Path, error: OSError) -> DiskFullError | ModelFileError:
    """Return what to raise for a file or folder that the system does not let us write."""
    if DiskFullError.matches(error):
        return DiskFullError(f"{path}: no space left: free some, then try again")
    return ModelFileError(str(path), f"cannot be written: {error.strerror}")


@contextmanager
def _locked(partial: Path, destination: Path) -> Iterator[FileIO]:
    while True:
        descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        with FileIO(descriptor, "wb") as file:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                reason = "is being written by another process"
                raise ModelFileError(str(destination), reason) from error
            if not _is_at(descriptor, partial):
                continue  # whoever held it has just finished: this is their file now
            yield file
            return


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _require_room(destination: Path, size_bytes: int) -> None:
    free = shutil.disk_usage(destination.parent).free
    if size_bytes > free:
        raise DiskFullError(
            f"{destination}: needs {size_bytes / 1e9:.1f} GB, {free / 1e9:.1f} GB are free: make "
            "room"
        )


def sync_folder(folder: Path) -> None:
    """Make a folder's new names survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
