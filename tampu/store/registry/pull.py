"""Pulls a model from a registry or the hub: each blob once, the manifest last."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing

from tampu.errors import DigestMismatchError, RegistryError
from tampu.store.locks import POLL_S, Lease, PolledLock
from tampu.store.manifests import Descriptor
from tampu.store.model import file_of
from tampu.store.names import ModelName
from tampu.store.registry.download import Download
from tampu.store.registry.hub import HubRepository
from tampu.store.registry.options import (
    HUB_HOSTS,
    MAX_ATTEMPTS,
    MAX_UNREACHABLE,
    RemoteOptions,
)
from tampu.store.registry.progress import Progress
from tampu.store.registry.remote import RangesIgnoredError, Registry, RemoteModel
from tampu.store.registry.transport import NetworkError, RateLimiter, Transport, UnreachableError
from tampu.store.store import Store

SMALL = 4 << 20  # blobs up to this size are downloaded with one request


def pull(store: Store, name: ModelName, options: RemoteOptions) -> Generator[Progress, None, None]:
    """Pull a model into a store, yielding the progress, `success` last.

    Existing blobs are verified instead of downloaded. Concurrent pulls of the same blob, also in
    other processes, download it once. Closing the iterator stops the pull; the next one resumes.

    Raises:
        RegistryError: if the registry fails or refuses; the store keeps complete blobs only.
        StoreError: if the store cannot be written.
    """
    with closing(Transport(options)) as transport, store.lease() as lease:
        yield Progress("pulling manifest")
        registry = (
            HubRepository(transport, name, options)
            if name.host.lower() in HUB_HOSTS
            else Registry(transport, name, options)
        )
        model = _with_retries(registry.find_model, options)
        if any(file_of(blob) is not None for blob in model.manifest.blobs()):
            raise RegistryError(f"{name.short} refers to files on this machine: refused")
        store.reserve(model.manifest, lease)
        for content in model.contents.values():
            store.blobs.put(content, lease)
        fetcher = _Fetcher(store, lease, options)
        for blob in model.manifest.distinct_blobs():
            yield from fetcher.fetch(blob, model)
        yield Progress("verifying sha256 digest")
        yield Progress("writing manifest")
        store.write(name, model.content)
        yield Progress("success")


class _Fetcher:
    """Downloads the blobs of one pull."""

    def __init__(self, store: Store, lease: Lease, options: RemoteOptions) -> None:
        self._store = store
        self._lease = lease
        self._options = options
        self._limiter = RateLimiter(options.limit_rate)

    def fetch(self, blob: Descriptor, model: RemoteModel) -> Iterator[Progress]:
        """Wait until a blob is in the store, downloading it if no other pull does."""
        yield _progress(blob, 0)
        with closing(PolledLock(self._store.layout.blob_lock(blob.digest))) as turn:
            while not turn.acquire():
                yield _progress(blob, _downloaded_bytes(self._store, blob))
                time.sleep(POLL_S)
            blobs = self._store.blobs
            if not (blobs.has(blob.digest, blob.size) and blobs.verify(blob.digest)):
                yield from self._download(blob, model)
        yield _progress(blob, blob.size)

    def _download(self, blob: Descriptor, model: RemoteModel) -> Iterator[Progress]:
        if blob.size <= SMALL:
            yield from self._download_whole(blob, model)
            return
        download = Download(
            self._store.layout,
            blob.digest,
            blob.size,
            model.source(blob),
            self._options,
            self._limiter,
        )
        is_resumed = download.can_resume()
        try:
            for completed in download.run():
                yield _progress(blob, completed)
        except RangesIgnoredError:
            download.forget()
            yield from self._download_whole(blob, model)
        except DigestMismatchError as error:
            if not is_resumed:
                raise _digest_mismatch(blob) from error
            yield from self._download(blob, model)  # the resumed part may have been damaged

    def _download_whole(self, blob: Descriptor, model: RemoteModel) -> Iterator[Progress]:
        """Download a blob with one request."""
        for failures in range(1, MAX_ATTEMPTS + 1):
            try:
                yield from self._stream(blob, model)
                return
            except NetworkError as error:
                if failures == MAX_ATTEMPTS:
                    raise
                time.sleep(self._options.retry_delay_s(failures, error.after_s))

    def _stream(self, blob: Descriptor, model: RemoteModel) -> Iterator[Progress]:
        writer = self._store.blobs.writer(self._lease)
        with writer, model.source(blob).open() as response:
            while content := response.read(self._limiter.chunk):
                if writer.size + len(content) > blob.size:
                    raise RegistryError(f"received more bytes than {blob.digest.short} has")
                writer.write(content)
                self._limiter.take(len(content))
                yield _progress(blob, writer.size)
            if writer.size < blob.size:
                raise NetworkError("the connection ended before the blob did")
            try:
                writer.commit(blob.digest)
            except DigestMismatchError as error:
                raise _digest_mismatch(blob) from error


def _with_retries(ask: Callable[[], RemoteModel], options: RemoteOptions) -> RemoteModel:
    for failures in range(1, MAX_ATTEMPTS):
        try:
            return ask()
        except NetworkError as error:
            if failures == MAX_UNREACHABLE and isinstance(error, UnreachableError):
                raise
            time.sleep(options.retry_delay_s(failures, error.after_s))
    return ask()


def _downloaded_bytes(store: Store, blob: Descriptor) -> int:
    """Return roughly how many bytes of a blob another process has downloaded."""
    try:
        return min(blob.size, store.layout.partial(blob.digest).stat().st_blocks * 512)
    except OSError:
        return store.blobs.size(blob.digest) or 0


def _progress(blob: Descriptor, completed: int) -> Progress:
    return Progress(f"pulling {blob.digest.short}", str(blob.digest), blob.size, completed)


def _digest_mismatch(blob: Descriptor) -> RegistryError:
    return RegistryError(f"the downloaded bytes do not match {blob.digest}: pull again")
