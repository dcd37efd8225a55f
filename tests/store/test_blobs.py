"""Blobs: a name comes from the bytes, and what fails leaves nothing."""

from __future__ import annotations

import io
import os
import resource
import signal
from collections.abc import Iterator
from typing import IO, Any, NoReturn, cast

import pytest
from support.stores import blob_names

from tampu.errors import DigestMismatchError, DiskFullError, StoreError
from tampu.store import Digest, Lease, Store

CONTENT = b"some bytes" * 1000


@pytest.fixture
def lease(store: Store) -> Iterator[Lease]:
    with store.lease() as lease:
        yield lease


def incoming(store: Store) -> list[Any]:
    return [path.name for path in store.layout.incoming.iterdir()]


def test_bytes_are_stored_under_their_digest(store: Store, lease: Lease) -> None:
    digest = store.blobs.put(CONTENT, lease)
    assert store.blobs.path(digest).read_bytes() == CONTENT
    assert store.blobs.path(digest).name == f"sha256-{Digest.of(CONTENT).hex}"
    assert store.blobs.path(digest).stat().st_mode & 0o777 == 0o444
    assert store.blobs.has(digest)
    assert store.blobs.has(digest, len(CONTENT))
    assert not store.blobs.has(digest, 1)
    assert store.blobs.read(digest, 1 << 20) == CONTENT


def test_a_stream_is_stored_with_progress(store: Store, lease: Lease) -> None:
    steps: list[Any] = []
    content = os.urandom(3 << 20)
    digest = store.blobs.put_stream(io.BytesIO(content), lease, progress=steps.append)
    assert (digest, sum(steps)) == (Digest.of(content), len(content))


def test_bytes_with_the_wrong_digest_are_discarded(store: Store, lease: Lease) -> None:
    with pytest.raises(DigestMismatchError):
        store.blobs.put_stream(io.BytesIO(CONTENT), lease, Digest.of(b"else"))
    assert not store.layout.blobs.exists() or blob_names(store) == []
    assert incoming(store) == []


def test_a_failing_stream_leaves_nothing(store: Store, lease: Lease) -> None:
    class Failing:
        def read(self, size: int) -> NoReturn:
            raise ValueError(size)

    with pytest.raises(ValueError):
        store.blobs.put_stream(cast("IO[bytes]", Failing()), lease)
    assert incoming(store) == []


def test_a_damaged_blob_is_detected_and_replaced(store: Store, lease: Lease) -> None:
    digest = store.blobs.put(CONTENT, lease)
    path = store.blobs.path(digest)
    path.chmod(0o644)
    path.write_bytes(b"\0" * len(CONTENT))
    assert not store.blobs.verify(digest)
    with pytest.raises(StoreError, match="is damaged"):
        store.blobs.read(digest, 1 << 20)
    store.blobs.put(CONTENT, lease)
    assert store.blobs.verify(digest)


def test_missing_and_oversized_blobs_are_errors(store: Store, lease: Lease) -> None:
    digest = store.blobs.put(CONTENT, lease)
    with pytest.raises(StoreError, match="more than 10"):
        store.blobs.read(digest, 10)
    with pytest.raises(StoreError, match="is missing"):
        store.blobs.read(Digest.of(b"x"), 10)
    with pytest.raises(StoreError, match="cannot read"):
        store.blobs.verify(Digest.of(b"x"))


def test_a_folder_or_a_pipe_is_not_a_blob(store: Store, lease: Lease) -> None:
    store.blobs.put(CONTENT, lease)
    folder, pipe = Digest.of(b"folder"), Digest.of(b"pipe")
    store.blobs.path(folder).mkdir()
    os.mkfifo(store.blobs.path(pipe))
    assert not store.blobs.has(folder)
    assert not store.blobs.has(pipe)


def test_free_disk_space_is_checked(store: Store) -> None:
    store.blobs.check_free_space(1)
    with pytest.raises(DiskFullError, match="no space left"):
        store.blobs.check_free_space(1 << 60)


def test_a_full_disk_leaves_nothing(store: Store, lease: Lease) -> None:
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, limits[1]))
    try:
        with pytest.raises(DiskFullError, match="no space left"):
            store.blobs.put(CONTENT, lease)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert incoming(store) == []
    assert store.blobs.put(CONTENT, lease) == Digest.of(CONTENT)
