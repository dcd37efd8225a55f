"""Pulling: a model from a registry or the hub into the store, each blob once, the manifest last."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing

from tampu.errors import DigestMismatchError, RegistryError
from tampu.store.locks import POLL_S, Lease, Turn
from tampu.store.manifests import Descriptor
from tampu.store.model import file_of
from tampu.store.names import ModelName
from tampu.store.registry.download import MOST_TRIES, Download, DownloadOptions
from tampu.store.registry.hub import open_hub
from tampu.store.registry.options import HUB_HOSTS, RemoteOptions
from tampu.store.registry.progress import Progress
from tampu.store.registry.ratelimit import RateLimiter
from tampu.store.registry.remote import Offer, open_registry, open_transport
from tampu.store.registry.source import RangesIgnoredError
from tampu.store.registry.transport import NetworkError, NoAnswerError
from tampu.store.store import Store

_MOST_SILENCES = 3  # of who answers nothing from the beginning: people wait to hear of a typo
SMALL = 4 << 20  # blobs up to this come in one piece


def pull(store: Store, name: ModelName, options: RemoteOptions) -> Iterator[Progress]:
    """Bring a model into a store, yielding what happens, `success` last.

    Blobs that are there already are read and verified, not brought again. Two that pull the same
    blob at once, here or in another process, bring it once. Closing the iterator stops the work;
    what has come stays, and the next pull goes on from there.

    Args:
        store: where it goes.
        name: of the model.
        options: how registries are talked to.

    Raises:
        RegistryError: if it cannot be had; the store is as it was, but for finished blobs.
        StoreError: if it cannot be written.
    """
    with closing(open_transport(options)) as transport, store.lease() as lease:
        yield Progress("pulling manifest")
        remote = (
            open_hub(transport, name, options)
            if name.host.lower() in HUB_HOSTS
            else open_registry(transport, name, options)
        )
        offer = _offered(remote.offer, options)
        _check(offer, name)
        lease.add(blob.digest for blob in offer.manifest.blobs())
        store.blobs.check_free_space(_missing_bytes(store, offer))
        for content in offer.contents.values():
            store.blobs.put(content, lease)
        fetcher = _Fetcher(store, lease, options)
        for blob in {blob.digest: blob for blob in offer.manifest.blobs()}.values():
            yield from fetcher.bring(blob, offer)
        yield Progress("verifying sha256 digest")
        yield Progress("writing manifest")
        store.write(name, offer.content)
        yield Progress("success")


class _Fetcher:
    """Brings the blobs of one pull."""

    def __init__(self, store: Store, lease: Lease, options: RemoteOptions) -> None:
        self._store = store
        self._lease = lease
        self._pauses_s = options.pauses_s
        limiter = RateLimiter(options.limit_rate)
        self._options = DownloadOptions(options.connections, limiter, options.pauses_s)

    def bring(self, blob: Descriptor, offer: Offer) -> Iterator[Progress]:
        """Have a blob in the store, whoever brings it."""
        yield _progress(blob, 0)
        with closing(Turn(self._store.layout.blob_lock(blob.digest))) as turn:
            while not turn.take():
                yield _progress(blob, _brought(self._store, blob))
                time.sleep(POLL_S)
            if not self._is_there(blob):
                yield from self._download(blob, offer)
        yield _progress(blob, blob.size)

    def _is_there(self, blob: Descriptor) -> bool:
        blobs = self._store.blobs
        return blobs.has(blob.digest, blob.size) and blobs.verify(blob.digest)

    def _download(self, blob: Descriptor, offer: Offer) -> Iterator[Progress]:
        source = offer.source(blob)
        if blob.size <= SMALL:
            yield from self._whole(blob, offer)
            return
        download = Download(self._store.layout, blob.digest, blob.size, source, self._options)
        went_on = download.has_begun()
        try:
            for completed in download.run():
                yield _progress(blob, completed)
        except RangesIgnoredError:
            download.forget()
            yield from self._whole(blob, offer)
        except DigestMismatchError as error:
            if not went_on:
                raise _mismatch(blob) from error
            yield from self._download(blob, offer)  # what was there from before may be to blame

    def _whole(self, blob: Descriptor, offer: Offer) -> Iterator[Progress]:
        """Bring a blob in one piece."""
        for failures in range(1, MOST_TRIES + 1):
            try:
                yield from self._stream(blob, offer)
                return
            except NetworkError as error:
                if failures == MOST_TRIES:
                    raise
                time.sleep(max(error.after_s, _pause(self._pauses_s, failures)))

    def _stream(self, blob: Descriptor, offer: Offer) -> Iterator[Progress]:
        limiter = self._options.limiter
        writer = self._store.blobs.writer(self._lease)
        with writer, offer.source(blob).open_whole() as reply:
            while content := reply.read(limiter.chunk):
                if writer.size + len(content) > blob.size:
                    raise RegistryError(f"more bytes came than {blob.digest.short} has")
                writer.write(content)
                limiter.take(len(content))
                yield _progress(blob, writer.size)
            if writer.size < blob.size:
                raise NetworkError("the connection ended before the blob did")
            try:
                writer.commit(blob.digest)
            except DigestMismatchError as error:
                raise _mismatch(blob) from error


def _offered(ask: Callable[[], Offer], options: RemoteOptions) -> Offer:
    for failures in range(1, MOST_TRIES):
        try:
            return ask()
        except NetworkError as error:
            if failures == _MOST_SILENCES and isinstance(error, NoAnswerError):
                raise
            time.sleep(max(error.after_s, _pause(options.pauses_s, failures)))
    return ask()


def _check(offer: Offer, name: ModelName) -> None:
    if any(file_of(blob) is not None for blob in offer.manifest.blobs()):
        raise RegistryError(f"{name.short} names files of this machine: refused")


def _missing_bytes(store: Store, offer: Offer) -> int:
    wanted = {blob.digest: blob.size for blob in offer.manifest.blobs()}
    return sum(size for digest, size in wanted.items() if not store.blobs.has(digest, size))


def _brought(store: Store, blob: Descriptor) -> int:
    """Return about how much of a blob another process has brought."""
    try:
        return min(blob.size, store.layout.partial(blob.digest).stat().st_blocks * 512)
    except OSError:
        return store.blobs.size(blob.digest) or 0


def _progress(blob: Descriptor, completed: int) -> Progress:
    return Progress(f"pulling {blob.digest.short}", str(blob.digest), blob.size, completed)


def _pause(pauses_s: tuple[float, ...], failures: int) -> float:
    return pauses_s[min(failures, len(pauses_s) - 1)]


def _mismatch(blob: Descriptor) -> RegistryError:
    return RegistryError(f"the bytes that came are not those of {blob.digest}: pull again")
