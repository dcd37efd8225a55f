"""Locks and leases between threads and processes; the kernel drops them with their process.

Three rules keep a blob from being deleted while somebody counts on it:

* whoever deletes holds the store's lock alone, and looks at manifests and leases under it;
* whoever will name a blob in a manifest puts it into a lease before looking whether it is there,
  holding the store's lock shared;
* a lease is a file that its owner keeps locked, so that one sees when its process has died.
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
    """Hold the lock of a file, waiting for it.

    Raises:
        StoreError: if the file cannot be made or locked.
    """
    descriptor = open_lock(path)
    try:
        with _translate_lock_errors():
            fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class HeldFile:
    """A file that is there for as long as it is held: to the end of a block, or of the process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def close(self) -> None:
        """Remove the file and let go of it; harmless if it is not held."""
        if self._descriptor >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PolledLock(HeldFile):
    """A lock of a file that is asked for again and again instead of waited for.

    The file is gone when the turn is over, so that no files are left for work that is done.
    """

    def take(self) -> bool:
        """Have the lock if nobody else has it, and return whether that went well.

        Raises:
            StoreError: if the file cannot be made or locked.
        """
        descriptor = open_lock(self._path)
        # The one before removes the file before it lets go: then there is a new one, or will be.
        if try_lock(descriptor, self._path):
            self._descriptor = descriptor
            return True
        os.close(descriptor)
        return False


class Lease(HeldFile):
    """Blobs that must stay because somebody is about to use or name them.

    It ends with `close`, with its block, or with the process.
    """

    def __init__(self, layout: Layout) -> None:
        """Begin an empty lease.

        Raises:
            StoreError: if it cannot be written.
        """
        super().__init__(layout.leases / f"{os.getpid()}-{secrets.token_hex(8)}")
        self._layout = layout
        with locked(layout.lock, shared=True):  # before it is locked, it looks dead to a cleaner
            self._descriptor = open_lock(self._path)
            if not try_lock(self._descriptor, self._path):
                raise StoreError(f"cannot lock {self._path.name}")

    def add(self, digests: Iterable[Digest]) -> None:
        """Keep these too, from now on.

        Raises:
            StoreError: if that cannot be written.
        """
        lines = "".join(f"{digest}\n" for digest in digests).encode()
        with locked(self._layout.lock, shared=True), translate_os_errors("the lease"):
            write_all(self._descriptor, lines)


def leased_digests(layout: Layout) -> set[Digest]:
    """Return all blobs that live leases keep. Dead leases are removed.

    The caller holds the store's lock alone.
    """
    kept: set[Digest] = set()
    for path in files_in(layout.leases):
        if not remove_abandoned(path):
            kept.update(_digests(path))
    return kept


def remove_abandoned(path: Path) -> bool:
    """Remove a file that its owner would keep locked, if the owner is gone."""
    with _translate_lock_errors():
        return remove_unlocked(path)


def open_lock(path: Path) -> int:
    """Return a descriptor of a file to be locked, made if it is not there.

    Raises:
        StoreError: if it cannot be made.
    """
    with translate_os_errors(f"the lock {path.name}"):
        make_folder(path.parent)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def try_lock(descriptor: int, path: Path) -> bool:
    """Lock a file if it is unlocked and still at its path; return whether it is locked now.

    Raises:
        StoreError: if the file system has no locks.
    """
    with _translate_lock_errors():
        return lock_exclusively(descriptor, path)


def files_in(folder: Path) -> list[Path]:
    """Return what is in a folder; nothing if it is not there."""
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


@contextmanager
def _translate_lock_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"the store's file system has no locks: {error.strerror}") from error


def _digests(path: Path) -> Iterator[Digest]:
    for line in path.read_text("ascii", "replace").splitlines():
        try:
            yield Digest.parse(line)
        except ModelNameError:  # a line that a full disk cut off: its `add` has failed
            continue
