"""Locks and leases between threads and processes; the kernel releases them with their process.

Three rules keep a blob that is in use from being deleted:

* deleting requires the store's exclusive lock, and reads manifests and leases under it;
* before checking whether a blob exists to name it in a manifest, it is added to a lease, under the
  store's shared lock;
* a lease is a file that its owner keeps locked, so the lease of a dead process can be recognized.

All functions raise StoreError if a file cannot be created, written or locked.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from tampu.errors import ModelNameError, StoreError
from tampu.ml.atomic_file import (
    lock_exclusively,
    make_folder,
    remove_unlocked,
    translate_os_errors,
    write_all,
)
from tampu.store.layout import Layout
from tampu.store.names import Digest

POLL_S = 0.05


@contextmanager
def locked(path: Path, *, shared: bool = False) -> Iterator[None]:
    """Hold a file's lock, waiting for it."""
    descriptor = open_lock(path)
    try:
        with _translate_lock_errors():
            fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class HeldFile:
    """A file that exists while it is held: until `close`, or the end of its block or process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def close(self) -> None:
        """Remove the file and release it; does nothing if it is not held."""
        if self._descriptor >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PolledLock(HeldFile):
    """A file lock that is polled instead of waited for; its file is removed on release."""

    def acquire(self) -> bool:
        """Take the lock if it is free; return whether it is held now."""
        descriptor = open_lock(self._path)
        # The previous holder removes the file before it releases the lock: then try a new file.
        if try_lock(descriptor, self._path):
            self._descriptor = descriptor
            return True
        os.close(descriptor)
        return False


class Lease(HeldFile):
    """A set of blobs that must not be deleted, because they are about to be used or named."""

    def __init__(self, layout: Layout) -> None:
        """Create an empty lease."""
        super().__init__(layout.leases / f"{os.getpid()}-{secrets.token_hex(8)}")
        self._layout = layout
        with locked(layout.lock, shared=True):  # until it is locked, it looks abandoned
            self._descriptor = open_lock(self._path)
            if not try_lock(self._descriptor, self._path):
                raise StoreError(f"cannot lock {self._path.name}")

    def add(self, digests: Iterable[Digest]) -> None:
        """Add blobs to the lease."""
        lines = "".join(f"{digest}\n" for digest in digests).encode()
        with locked(self._layout.lock, shared=True), translate_os_errors("the lease"):
            write_all(self._descriptor, lines)


def leased_digests(layout: Layout) -> set[Digest]:
    """Return the blobs of all live leases, and remove those of dead processes.

    The caller holds the store's exclusive lock.
    """
    kept: set[Digest] = set()
    for path in files_in(layout.leases):
        if not remove_abandoned(path):
            kept.update(_digests(path))
    return kept


def remove_abandoned(path: Path) -> bool:
    """Remove a file unless its owner still holds its lock; return whether it is gone."""
    with _translate_lock_errors():
        return remove_unlocked(path)


def open_lock(path: Path) -> int:
    """Open a lock file, creating it if needed, and return its descriptor."""
    with translate_os_errors(f"the lock {path}"):
        make_folder(path.parent)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def try_lock(descriptor: int, path: Path) -> bool:
    """Lock a file if it is unlocked and still at its path; return whether it is locked now."""
    with _translate_lock_errors():
        return lock_exclusively(descriptor, path)


def is_file(path: Path) -> bool:
    """Return whether there is a file; not if a folder on the way is closed."""
    return os.path.isfile(path)  # noqa: PTH113 - `Path.is_file` raises an error then


def is_folder(path: Path) -> bool:
    """Return whether there is a folder; not if one on the way is closed."""
    return os.path.isdir(path)  # noqa: PTH112 - as above


def files_in(folder: Path) -> list[Path]:
    """Return the content of a folder; empty if it does not exist."""
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


@contextmanager
def _translate_lock_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"the store's file system does not support locks: {error.strerror}"
        ) from error


def _digests(path: Path) -> Iterator[Digest]:
    try:
        lines = path.read_text("ascii", "replace").splitlines()
    except FileNotFoundError:  # the lease has just ended
        return
    for line in lines:
        try:
            yield Digest.parse(line)
        except ModelNameError:  # truncated by a full disk: its `add` has failed
            continue
