"""Blobs: files named by the SHA-256 of their content.

The name is computed from the bytes as they are written, so only a damaged disk can make a blob
differ from its name.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO

from tampu.errors import DigestMismatchError, StoreError
from tampu.ml.atomic_file import (
    check_free_space,
    make_folder,
    publish,
    translate_os_errors,
    write_all,
)
from tampu.store.layout import Layout
from tampu.store.locks import HeldFile, Lease, open_lock, try_lock
from tampu.store.names import Digest

CHUNK = 1 << 20
MODE = 0o444
Progress = Callable[[int], None]


class Blobs:
    """The blobs of one store; methods raise StoreError if one cannot be read or written."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    @property
    def layout(self) -> Layout:
        """The store's layout."""
        return self._layout

    def path(self, digest: Digest) -> Path:
        """Return the path of a blob, present or not."""
        return self._layout.blob(digest)

    def size(self, digest: Digest) -> int | None:
        """Return a blob's size in bytes; None if it is missing or not a regular file."""
        path = self.path(digest)
        try:
            return path.stat().st_size if path.is_file() else None
        except OSError:
            return None

    def has(self, digest: Digest, size: int | None = None) -> bool:
        """Whether a blob is present, and of this size if one is given."""
        found = self.size(digest)
        return found is not None and (size is None or found == size)

    def read(self, digest: Digest, max_bytes: int) -> bytes:
        """Return a small blob's content, verified."""
        size = self.size(digest)
        if size is None:
            raise StoreError(f"the blob {digest.short} is missing: pull the model again")
        if size > max_bytes:
            raise StoreError(f"the blob {digest.short} has {size} bytes, more than {max_bytes}")
        try:
            content = self.path(digest).read_bytes()
        except OSError as error:
            raise StoreError(f"cannot read {digest.file_name}: {error.strerror}") from error
        if Digest.of(content) != digest:
            raise damaged(digest)
        return content

    def verify(self, digest: Digest) -> bool:
        """Return whether a blob matches its name."""
        return hash_file(self.path(digest)) == digest

    def writer(self, lease: Lease) -> BlobWriter:
        """Start a blob, which the lease will keep."""
        return BlobWriter(self._layout, lease)

    def put(self, content: bytes, lease: Lease) -> Digest:
        """Store bytes and return their digest."""
        digest = Digest.of(content)
        lease.add([digest])
        if not self._holds(digest, content):
            with self.writer(lease) as writer:
                writer.write(content)
                writer.commit(digest)
        return digest

    def _holds(self, digest: Digest, content: bytes) -> bool:
        try:
            return self.has(digest, len(content)) and self.path(digest).read_bytes() == content
        except OSError:
            return False

    def put_stream(
        self,
        source: IO[bytes],
        lease: Lease,
        expected: Digest | None = None,
        progress: Progress | None = None,
    ) -> Digest:
        """Store the content of a stream and return its digest.

        Args:
            source: the stream.
            lease: keeps the blob.
            expected: the digest that the content must have.
            progress: called with the bytes of each step.

        Raises:
            DigestMismatchError: if the digest is not `expected`; nothing is kept.
            StoreError: if the blob cannot be written.
        """
        with self.writer(lease) as writer:
            while chunk := source.read(CHUNK):
                writer.write(chunk)
                if progress is not None:
                    progress(len(chunk))
            return writer.commit(expected)

    def adopt(self, path: Path, digest: Digest) -> None:
        """Move a complete file from the store's incoming folder to its blob, durably.

        The caller has verified its digest.
        """
        with translate_os_errors(f"the blob {digest.short}"):
            make_folder(self._layout.blobs)
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                publish(descriptor, path, self.path(digest), MODE)
            finally:
                os.close(descriptor)

    def check_free_space(self, needed_bytes: int) -> None:
        """Refuse to begin a download that does not fit.

        Raises:
            DiskFullError: if the store's file system has less space free.
        """
        check_free_space(self._layout.root, needed_bytes)


class BlobWriter(HeldFile):
    """Writes a blob; it is discarded without `commit`. An error of the system is a StoreError."""

    def __init__(self, layout: Layout, lease: Lease) -> None:
        super().__init__(layout.temporary())
        self._layout = layout
        self._lease = lease
        self._hash = hashlib.sha256()
        self._descriptor = open_lock(self._path)
        if not try_lock(self._descriptor, self._path):  # a clean-up sees it is in use
            raise StoreError("cannot lock a new file of the store")
        self.size = 0

    def write(self, content: bytes | memoryview) -> None:
        """Append bytes."""
        with translate_os_errors("a blob"):
            write_all(self._descriptor, content)
        self._hash.update(content)
        self.size += len(content)

    def commit(self, expected: Digest | None = None) -> Digest:
        """Store the blob under its digest, durably, and return the digest.

        Raises:
            DigestMismatchError: if it is not `expected`.
            StoreError: if that fails.
        """
        digest = Digest(self._hash.hexdigest())
        if expected is not None and digest != expected:
            raise DigestMismatchError(f"the digest is {digest}, not {expected}")
        self._lease.add([digest])
        Blobs(self._layout).adopt(self._path, digest)
        return digest


def hash_file(path: Path, progress: Progress | None = None) -> Digest:
    """Return the digest of a file; `progress` is called with the bytes of each step.

    Raises:
        StoreError: if it cannot be read.
    """
    hasher = hashlib.sha256()
    buffer = memoryview(bytearray(CHUNK))
    try:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                hasher.update(buffer[:count])
                if progress is not None:
                    progress(count)
    except OSError as error:
        raise StoreError(f"cannot read {path.name}: {error.strerror}") from error
    return Digest(hasher.hexdigest())


def byte_counter(progress: Callable[[int, int], None] | None, total: int) -> Callable[[int], None]:
    """Return a function that adds up bytes and calls `progress` with the sum and the total."""
    done = 0

    def count(size: int) -> None:
        nonlocal done
        done += size
        if progress is not None:
            progress(done, total)

    return count


def damaged(digest: Digest) -> StoreError:
    """Return the error for a blob that does not match its digest."""
    return StoreError(
        f"the blob {digest.short} is damaged: run `tampu verify-store --repair`, then pull again"
    )
