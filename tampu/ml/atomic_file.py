"""Atomic writes: after a crash or a power cut at any moment a file is the old one or the new one.

    write the partial file -> fsync -> rename -> fsync the folder

The partial file is held by a lock, so that no two processes write it, and what a killed process
left is overwritten by the next. The kernel drops the lock with its process.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from io import FileIO
from pathlib import Path
from typing import Any, cast

from tampu.errors import DiskFullError, ModelFileError, StoreError

_STEP_BYTES = 32 << 20
_SYNC_FILE_RANGE_WRITE = 2  # of Linux: start writing these pages back, do not wait
_Writeback = Callable[[int, int, int, int], object]


class AtomicFile(FileIO):
    """A file whose `write` takes all bytes and starts their write-back early.

    So the disk works while the next bytes are made, and little is left for the fsync.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "wb")
        self._dirty_bytes = 0

    def write(self, data: bytes | bytearray | memoryview, /) -> int:  # type: ignore[override]
        """Write all bytes and return how many they are."""
        content = memoryview(data).cast("B")
        write_all(self.fileno(), content)
        self._dirty_bytes += len(content)
        if self._dirty_bytes >= _STEP_BYTES and (start := _writeback()) is not None:
            # Advice only: an error of the disk comes to light in the fsync at the end.
            begin = self.tell() - self._dirty_bytes
            start(self.fileno(), begin, self._dirty_bytes, _SYNC_FILE_RANGE_WRITE)
            self._dirty_bytes = 0
        return len(content)


@contextmanager
def atomic_file(
    path: Path, *, partial: Path | None = None, mode: int | None = None, is_durable: bool = True
) -> Iterator[AtomicFile]:
    """Yield an empty file to write; it appears at `path` at the end of the block, if all went well.

    Args:
        path: replaced if it is there.
        partial: the file's path until then, on the same file system; None: `.NAME.partial`.
        mode: its permissions; None: those of any new file.
        is_durable: False: after a power cut the file may be old or empty.

    Raises:
        BlockingIOError: if another process is writing it.
        OSError: if it cannot be written; nothing has changed.
    """
    if not path.name:  # as "." and "/"
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    partial = partial or path.with_name(f".{path.name}.partial")
    with _opened(partial, 0o666 if mode is None else 0o600) as file, ExitStack() as undo:
        undo.callback(partial.unlink, missing_ok=True)
        os.ftruncate(file.fileno(), 0)
        yield file
        publish(file.fileno(), partial, path, mode, is_durable=is_durable)
        undo.pop_all()


def publish(
    descriptor: int,
    partial: Path,
    path: Path,
    mode: int | None = None,
    *,
    is_durable: bool = True,
) -> None:
    """Give a complete file its permissions and its final path.

    Raises:
        OSError: if that fails.
    """
    if mode is not None:
        os.fchmod(descriptor, mode)
    if is_durable:
        os.fsync(descriptor)
    partial.replace(path)
    if is_durable:
        sync_folder(path.parent)


def make_folder(folder: Path) -> None:
    """Make a folder and its parents durably, private to their owner."""
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    for parent in reversed(missing):
        with suppress(FileExistsError):
            parent.mkdir(mode=0o700)
            sync_folder(parent.parent)


def sync_folder(folder: Path) -> None:
    """Make changes of the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, content: bytes | memoryview, offset: int | None = None) -> None:
    """Write all bytes, at an offset if one is given: the system may take fewer at a time."""
    rest = memoryview(content)
    while rest:
        if offset is None:
            count = os.write(descriptor, rest)
        else:
            count = os.pwrite(descriptor, rest, offset)
            offset += count
        rest = rest[count:]


def check_free_space(path: Path, needed_bytes: int) -> None:
    """Refuse to begin a file that cannot be completed.

    Raises:
        DiskFullError: if the file system of `path` has less space free.
    """
    path = path.absolute()
    folder = next(folder for folder in (path, *path.parents) if folder.exists())
    free = shutil.disk_usage(folder).free
    if needed_bytes > free:
        unit, name = (1e9, "GB") if needed_bytes >= 1e9 else (1e6, "MB")
        raise DiskFullError(
            f"{path}: no space left: needs {needed_bytes / unit:.1f} {name}, {free / unit:.1f} "
            f"{name} are free"
        )


@contextmanager
def translate_os_errors(
    what: object, kind: type[StoreError] | type[ModelFileError] = StoreError
) -> Iterator[None]:
    """Translate the `OSError` of a block that writes `what`.

    Raises:
        DiskFullError: for a full disk, a quota or a limit of file size.
        StoreError, or ModelFileError: for any other error of the system.
    """
    try:
        yield
    except OSError as error:
        if DiskFullError.matches(error):
            raise DiskFullError(f"no space left for {what}: free some, then try again") from error
        failed, reason = f"cannot write {what}", error.strerror or str(error)
        if kind is ModelFileError:
            raise ModelFileError(failed, reason) from error
        raise StoreError(f"{failed}: {reason}") from error


def lock_exclusively(descriptor: int, path: Path) -> bool:
    """Lock an open file if it is unlocked and still at its path; return whether it is locked now.

    Raises:
        OSError: if the file system has no locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return _is_at(descriptor, path)


def remove_unlocked(path: Path) -> bool:
    """Remove a file unless a process has it locked; return whether it is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        if lock_exclusively(descriptor, path):
            path.unlink(missing_ok=True)
            return True
        return not path.exists()
    finally:
        os.close(descriptor)


@contextmanager
def _opened(partial: Path, mode: int) -> Iterator[AtomicFile]:
    while True:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        with AtomicFile(os.open(partial, flags, mode)) as file:
            try:
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise BlockingIOError(error.errno, "another process is writing it") from error
            if _is_at(file.fileno(), partial):
                yield file
                return
            # Its last writer has just renamed it: open a new one.


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


@cache
def _writeback() -> _Writeback | None:
    """Return the C library's sync_file_range(descriptor, offset, size, flags); None without it."""
    if sys.platform != "linux":
        return None
    try:
        function: Any = ctypes.CDLL(None).sync_file_range
    except AttributeError:
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return cast("_Writeback", function)
