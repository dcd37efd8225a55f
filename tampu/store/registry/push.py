"""Pushes a model to a registry: blobs in resumable chunks, the manifest last.

A registry either accepts a chunk itself (`202 Accepted`, like the reference registry) or redirects
it (`307`, like Ollama's: object storage receives it without a token, and the upload is completed
with the hash of the chunks' hashes).
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode, urljoin, urlsplit

from tampu.errors import RegistryError, StoreError
from tampu.store.blobs import damaged
from tampu.store.manifests import Descriptor
from tampu.store.model import StoredModel
from tampu.store.names import Digest, ModelName
from tampu.store.registry.options import MAX_ATTEMPTS, MAX_UNREACHABLE, RemoteOptions
from tampu.store.registry.progress import Progress
from tampu.store.registry.remote import Registry
from tampu.store.registry.transport import (
    NetworkError,
    RateLimiter,
    Response,
    Transport,
    UnreachableError,
    host_of,
    origin_of,
)
from tampu.store.store import Store

_FIRST_CHUNK_BYTES, _MIN_CHUNK_BYTES, _MAX_CHUNK_BYTES = 8 << 20, 5 << 20, 64 << 20
_CHUNK_S = 1.0  # target duration of a chunk
_BINARY = {"Content-Type": "application/octet-stream"}
_RECEIVED = re.compile(r"(?:bytes=)?0-(\d{1,19})", re.ASCII)


def push(store: Store, name: ModelName, options: RemoteOptions) -> Iterator[Progress]:
    """Push a model to the registry in its name, yielding the progress, `success` last.

    Raises:
        ModelNotFoundError: if there is no such model.
        StoreError: if a blob is missing or damaged.
        RegistryError: if the registry refuses or fails.
    """
    yield Progress("retrieving manifest")
    with closing(Transport(options)) as transport, store.lease() as lease:
        model = store.model(name)
        lease.add(blob.digest for blob in model.manifest.blobs())
        registry = Registry(transport, model.name, options)
        pusher = _Pusher(registry, model, options)
        for blob in model.manifest.distinct_blobs():
            yield from pusher.push_blob(blob)
        yield Progress("pushing manifest")
        pusher.push_manifest()
        yield Progress("success")


@dataclass(slots=True)
class _Upload:
    """The state of an upload: the URL of the next chunk, and what has been sent."""

    url: str
    position: int = 0
    hashes: bytes = b""
    chunks: int = 0
    is_redirected: bool = False


class _Pusher:
    """Uploads the blobs of one model."""

    def __init__(self, registry: Registry, model: StoredModel, options: RemoteOptions) -> None:
        self._registry = registry
        self._session = registry.session
        self._model = model
        self._options = options
        self._limiter = RateLimiter(options.limit_rate)
        self._chunk = _FIRST_CHUNK_BYTES
        self._is_reached = False

    def push_blob(self, blob: Descriptor) -> Iterator[Progress]:
        """Upload a blob unless the registry has it."""
        yield _progress(blob, 0)
        path = self._model.path_of(blob)
        failures, best = 0, 0
        while True:
            try:
                if not self._has(blob):
                    for position in self._upload(blob, path):
                        failures = 0 if position > best else failures
                        best = max(best, position)
                        yield _progress(blob, position)
                break
            except NetworkError as error:
                failures += 1
                is_reached = self._is_reached or not isinstance(error, UnreachableError)
                if failures >= (MAX_ATTEMPTS if is_reached else MAX_UNREACHABLE):
                    raise
                time.sleep(self._options.retry_delay_s(failures, error.after_s))
        yield _progress(blob, blob.size)

    def push_manifest(self) -> None:
        """Upload the manifest under the model's tag."""
        path = f"{self._registry.path}/manifests/{self._model.name.tag}"
        kind = {"Content-Type": self._model.manifest.media_type}
        content = self._model.portable_content()
        response = self._session.send("PUT", path, kind, content)
        self._session.expect(response, 200, 201, 202, doing="push model manifest").close()

    def _has(self, blob: Descriptor) -> bool:
        response = self._session.send("HEAD", f"{self._registry.path}/blobs/{blob.digest}")
        self._is_reached = True
        with response:
            if response.status == 404:
                return False
            self._session.expect(response, 200, doing="push model blob")
            return True

    def _upload(self, blob: Descriptor, path: Path) -> Iterator[int]:
        """Upload a blob, yielding the number of bytes sent."""
        upload = self._start()
        hasher = hashlib.sha256()
        hashed = 0
        try:
            with path.open("rb", buffering=0) as file:
                while upload.position < blob.size:
                    file.seek(upload.position)
                    content = file.read(min(self._chunk, blob.size - upload.position))
                    if not content:
                        raise damaged(blob.digest)
                    if upload.position + len(content) > hashed:  # not a repeated chunk
                        hasher.update(content[hashed - upload.position :])
                        hashed = upload.position + len(content)
                    self._send(upload, content)
                    yield upload.position
        except OSError as error:
            raise StoreError(f"cannot read {path.name}: {error.strerror}") from error
        if Digest(hasher.hexdigest()) != blob.digest:
            raise damaged(blob.digest)
        self._finish(upload, blob)

    def _start(self) -> _Upload:
        response = self._session.send("POST", f"{self._registry.path}/blobs/uploads/", body=b"")
        self._session.expect(response, 202, doing="push model blob")
        response.close()
        return _Upload(self._next(response, self._session.base))

    def _send(self, upload: _Upload, content: bytes) -> None:
        """Send a chunk; if that fails, resume from the position that the registry reports."""
        last = upload.position + len(content) - 1
        headers = {"Content-Range": f"{upload.position}-{last}", "X-Redirect-Uploads": "1"}
        began = time.monotonic()
        try:
            response = self._session.send("PATCH", upload.url, _BINARY | headers, content)
            if response.status == 307:
                self._send_to_storage(upload, response, content)
            else:
                self._session.expect(response, 202, doing="push model blob").close()
                upload.url = self._next(response, upload.url)
        except NetworkError:
            if upload.is_redirected or not self._resume(upload):
                raise
            return
        upload.position = last + 1
        upload.hashes += hashlib.md5(content, usedforsecurity=False).digest()
        upload.chunks += 1
        self._limiter.take(len(content))
        self._adapt(len(content), time.monotonic() - began)

    def _send_to_storage(self, upload: _Upload, response: Response, content: bytes) -> None:
        storage = urljoin(response.url, response.headers.get("Location", ""))
        following = response.headers.get("Docker-Upload-Location") or upload.url
        response.close()
        upload.is_redirected = True
        stored = self._session.transport.send("PUT", storage, _BINARY, content)
        self._session.expect(stored, 200, 201, 204, doing="push model blob").close()
        upload.url = self._checked(urljoin(upload.url, following))

    def _resume(self, upload: _Upload) -> bool:
        """Ask the registry for an upload's position; return whether it has advanced."""
        before = upload.position
        try:
            response = self._session.send("GET", upload.url)
        except NetworkError:
            return False
        with response:
            match = _RECEIVED.fullmatch(response.headers.get("Range", ""))
            if response.status != 204 or match is None:
                return False
        upload.url = self._next(response, upload.url)
        upload.position = int(match[1]) + 1 if int(match[1]) else 0
        return upload.position > before

    def _finish(self, upload: _Upload, blob: Descriptor) -> None:
        query = {"digest": str(blob.digest)}
        if upload.is_redirected:
            joined = hashlib.md5(upload.hashes, usedforsecurity=False).hexdigest()
            query["etag"] = f"{joined}-{upload.chunks}"
        separator = "&" if urlsplit(upload.url).query else "?"
        url = upload.url + separator + urlencode(query)
        response = self._session.send("PUT", url, _BINARY, b"")
        self._session.expect(response, 201, 204, doing="push model blob").close()

    def _next(self, response: Response, base: str) -> str:
        location = response.headers.get("Docker-Upload-Location") or response.headers.get(
            "Location", ""
        )
        if not location:
            raise RegistryError(f"{host_of(base)} sent no upload location")
        return self._checked(urljoin(base + "/", location))

    def _checked(self, url: str) -> str:
        if origin_of(url) != origin_of(self._session.base):
            raise RegistryError(f"{host_of(self._session.base)} redirects uploads to another host")
        return url

    def _adapt(self, size: int, elapsed_s: float) -> None:
        """Choose the size of the next chunk so that it takes about `_CHUNK_S`."""
        wanted = int(size * _CHUNK_S / max(elapsed_s, 1e-3))
        self._chunk = max(_MIN_CHUNK_BYTES, min(_MAX_CHUNK_BYTES, wanted))


def _progress(blob: Descriptor, completed: int) -> Progress:
    return Progress(f"pushing {blob.digest.short}", str(blob.digest), blob.size, completed)
