"""Pulls a model from a registry or the hub: each blob once, the manifest last."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing

from tampu.errors import DigestMismatchError, RegistryError
from tampu.store.locks import POLL_S, Lease, PolledLock
from tampu.store.manifests import Descriptor
from tampu.store.model import file_of
from tampu.store.names import ModelName
from tampu.store.registry.download import MAX_ATTEMPTS, Download, DownloadOptions
from tampu.store.registry.hub import open_hub
from tampu.store.registry.options import HUB_HOSTS, RemoteOptions
from tampu.store.registry.progress import Progress
from tampu.store.registry.ratelimit import RateLimiter
from tampu.store.registry.remote import RemoteModel, open_registry, open_transport
from tampu.store.registry.source import RangesIgnoredError
from tampu.store.registry.transport import NetworkError, UnreachableError
from tampu.store.store import Store

_MAX_UNREACHABLE = 3  # attempts to reach a host at first: it may be a typo
SMALL = 4 << 20  # blobs up to this size are downloaded with one request


def pull(store: Store, name: ModelName, options: RemoteOptions) -> Iterator[Progress]:
    """Pull a model into a store, yielding the progress, `success` last.

    Existing blobs are verified instead of downloaded. Concurrent pulls of the same blob, also in
    other processes, download it once. Closing the iterator stops the pull; the next one resumes.

    Args:
        store: the destination.
        name: of the model.
        options: for access to the registry.

    Raises:
        RegistryError: if the registry fails or refuses; the store keeps complete blobs only.
        StoreError: if the store cannot be written.
    """
    with closing(open_transport(options)) as transport, store.lease() as lease:
        yield Progress("pulling manifest")
        registry = (
            open_hub(transport, name, options)
            if name.host.lower() in HUB_HOSTS
            else open_registry(transport, name, options)
        )
        model = _with_retries(registry.find_model, options)
        _check(model, name)
        lease.add(blob.digest for blob in model.manifest.blobs())
        store.blobs.check_free_space(_missing_bytes(store, model))
        for content in model.contents.values():
            store.blobs.put(content, lease)
        fetcher = _Fetcher(store, lease, options)
        for blob in {blob.digest: blob for blob in model.manifest.blobs()}.values():
            yield from fetcher.bring(blob, model)
        yield Progress("verifying sha256 digest")
        yield Progress("writing manifest")
        store.write(name, model.content)
        yield Progress("success")


class _Fetcher:
    """Downloads the blobs of one pull."""

    def __init__(self, store: Store, lease: Lease, options: RemoteOptions) -> None:
        self._store = store
        self._lease = lease
        self._retry_delays_s = options.retry_delays_s
        limiter = RateLimiter(options.limit_rate)
        self._options = DownloadOptions(options.connections, limiter, options.retry_delays_s)

    def bring(self, blob: Descriptor, model: RemoteModel) -> Iterator[Progress]:
        """Wait until a blob is in the store, downloading it if no other pull does."""
        yield _progress(blob, 0)
        with closing(PolledLock(self._store.layout.blob_lock(blob.digest))) as turn:
            while not turn.acquire():
                yield _progress(blob, _downloaded_bytes(self._store, blob))
                time.sleep(POLL_S)
            if not self._is_there(blob):
                yield from self._download(blob, model)
        yield _progress(blob, blob.size)

    def _is_there(self, blob: Descriptor) -> bool:
        blobs = self._store.blobs
        return blobs.has(blob.digest, blob.size) and blobs.verify(blob.digest)

    def _download(self, blob: Descriptor, model: RemoteModel) -> Iterator[Progress]:
        source = model.source(blob)
        if blob.size <= SMALL:
            yield from self._download_whole(blob, model)
            return
        download = Download(self._store.layout, blob.digest, blob.size, source, self._options)
        went_on = download.can_resume()
        try:
            for completed in download.run():
                yield _progress(blob, completed)
        except RangesIgnoredError:
            download.forget()
            yield from self._download_whole(blob, model)
        except DigestMismatchError as error:
            if not went_on:
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
                time.sleep(max(error.after_s, _retry_delay(self._retry_delays_s, failures)))

    def _stream(self, blob: Descriptor, model: RemoteModel) -> Iterator[Progress]:
        limiter = self._options.limiter
        writer = self._store.blobs.writer(self._lease)
        with writer, model.source(blob).open_whole() as response:
            while content := response.read(limiter.chunk):
                if writer.size + len(content) > blob.size:
                    raise RegistryError(f"received more bytes than {blob.digest.short} has")
                writer.write(content)
                limiter.take(len(content))
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
            if failures == _MAX_UNREACHABLE and isinstance(error, UnreachableError):
                raise
            time.sleep(max(error.after_s, _retry_delay(options.retry_delays_s, failures)))
    return ask()


def _check(model: RemoteModel, name: ModelName) -> None:
    if any(file_of(blob) is not None for blob in model.manifest.blobs()):
        raise RegistryError(f"{name.short} refers to files on this machine: refused")


def _missing_bytes(store: Store, model: RemoteModel) -> int:
    wanted = {blob.digest: blob.size for blob in model.manifest.blobs()}
    return sum(size for digest, size in wanted.items() if not store.blobs.has(digest, size))


def _downloaded_bytes(store: Store, blob: Descriptor) -> int:
    """Return roughly how many bytes of a blob another process has downloaded."""
    try:
        return min(blob.size, store.layout.partial(blob.digest).stat().st_blocks * 512)
    except OSError:
        return store.blobs.size(blob.digest) or 0


def _progress(blob: Descriptor, completed: int) -> Progress:
    return Progress(f"pulling {blob.digest.short}", str(blob.digest), blob.size, completed)


def _retry_delay(retry_delays_s: tuple[float, ...], failures: int) -> float:
    return retry_delays_s[min(failures, len(retry_delays_s) - 1)]


def _digest_mismatch(blob: Descriptor) -> RegistryError:
    return RegistryError(f"the downloaded bytes do not match {blob.digest}: pull again")
