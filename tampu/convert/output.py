"""A file that appears under its name only when it is whole, whatever happens on the way.

It is written beside its place as `.NAME.partial`, held by a lock, so that two processes never write
the same file and what a killed one left is taken over by the next.

    write .NAME.partial -> fsync -> rename to NAME -> fsync the folder
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from tampu.errors import DiskFullError, ModelFileError


class WholeFile:
    """A file that takes all that it is given; the system may take less at a time.

    Attributes:
        copies_in_kernel: whether `copy` works here; other systems' sendfile is for sockets.
    """

    copies_in_kernel = sys.platform == "linux"

    def __init__(self, file: FileIO) -> None:
        self._file = file

    def write(self, data: bytes | memoryview) -> None:
        """Add bytes."""
        rest = memoryview(data)
        while rest.nbytes:
            rest = rest[os.write(self._file.fileno(), rest) :]

    def copy(self, source: FileIO, offset: int, size_bytes: int) -> None:
        """Add bytes of another file in the kernel; only where `copies_in_kernel`."""
        while size_bytes:
            count = os.sendfile(self._file.fileno(), source.fileno(), offset, size_bytes)
            if not count:
                raise OSError(errno.EIO, "the file that is copied became shorter")
            offset, size_bytes = offset + count, size_bytes - count


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
    if DiskFullError.is_meant_by(error):
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
