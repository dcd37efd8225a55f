"""A registry for `pull` and `push`: manifests and blobs by the OCI protocol."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tampu.errors import RegistryError, StoreError
from tampu.store.manifests import (
    MANIFEST_TYPE,
    MAX_MANIFEST_BYTES,
    OCI_MANIFEST_TYPE,
    Descriptor,
    Manifest,
    read_manifest,
)
from tampu.store.names import Digest, ModelName
from tampu.store.registry.options import RemoteOptions
from tampu.store.registry.session import Session
from tampu.store.registry.transport import Response, Transport, host_of, origin_of

ACCEPT = f"{MANIFEST_TYPE}, {OCI_MANIFEST_TYPE}"
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)", re.ASCII)


class RangesIgnoredError(RegistryError):
    """The server ignored a range request and sent the whole blob."""


class BlobSource:
    """A remote blob that several threads can read in ranges.

    Raises RegistryError for an invalid response, NetworkError if a retry may help.
    """

    def __init__(self, session: Session, path: str, size: int) -> None:
        """Read from `path` of a registry or hub; `size` bytes are expected there."""
        self._session = session
        self._path = path
        self._size = size
        self._storage: str | None = None  # the address that the registry last redirected to

    def open(self, start: int = 0, end: int | None = None) -> Response:
        """Return a response with the bytes in [start, end); without an end, the whole blob."""
        headers = {"Range": f"bytes={start}-{end - 1}"} if end is not None else {}
        response = self._from_storage(headers) or self._from_registry(headers)
        try:
            self._check(response, start, end or self._size, is_whole=not headers)
        except RegistryError:
            response.close()
            raise
        return response

    def _from_storage(self, headers: Mapping[str, str]) -> Response | None:
        """Ask the storage directly; None if there is none, or its URL has expired."""
        storage = self._storage
        if storage is None:
            return None
        response = self._session.transport.send("GET", storage, headers)
        if response.status in (200, 206):
            return response
        response.close()
        self._storage = None
        return None

    def _from_registry(self, headers: Mapping[str, str]) -> Response:
        response = self._session.send("GET", self._path, headers)
        self._session.expect(response, 200, 206, doing="pull model blob")
        if origin_of(response.url) != origin_of(self._session.base):
            self._storage = response.url
        return response

    def _check(self, response: Response, start: int, end: int, *, is_whole: bool) -> None:
        host = host_of(response.url)
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise RegistryError(f"{host} sent a compressed blob")
        if response.status == 200 and not is_whole:
            raise RangesIgnoredError(f"{host} does not support range requests")
        if response.length is not None and response.length != end - start:
            raise RegistryError(
                f"{host} sent {response.length} bytes of a blob instead of {end - start}"
            )
        if response.status == 206:
            match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
            total = match[3] if match else ""
            if (
                match is None
                or (int(match[1]), int(match[2])) != (start, end - 1)
                or total not in ("*", str(self._size))
            ):
                raise RegistryError(f"{host} sent another range of a blob than requested")


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """A model in a registry or on the hub.

    Attributes:
        content: the manifest's bytes.
        manifest: the parsed manifest.
        source: returns the source of a blob.
        contents: blobs that were already received.
    """

    content: bytes
    manifest: Manifest
    source: Callable[[Descriptor], BlobSource]
    contents: dict[Digest, bytes] = field(default_factory=dict)


class Registry:
    """One repository of a registry that speaks the OCI protocol as Ollama's does."""

    def __init__(self, transport: Transport, name: ModelName, options: RemoteOptions) -> None:
        self.session = Session(
            transport,
            options.base_of(name),
            realm_hosts=options.realm_hosts(options.host_of(name)),
            sign=options.signer(),
            logins=dict(options.logins),
        )
        self.name = name
        self.path = f"/v2/{name.repository}"

    def find_model(self) -> RemoteModel:
        """Return the model of the tag."""
        path = f"{self.path}/manifests/{self.name.tag}"
        response = self.session.send("GET", path, {"Accept": ACCEPT})
        if response.status == 404:
            response.close()
            raise RegistryError("pull model manifest: file does not exist")
        self.session.expect(response, 200, doing="pull model manifest")
        content = response.read_all(MAX_MANIFEST_BYTES)
        manifest = checked_manifest(content, host_of(response.url))
        return RemoteModel(content, manifest, self.source)

    def source(self, blob: Descriptor) -> BlobSource:
        """Return the source of a blob."""
        return BlobSource(self.session, f"{self.path}/blobs/{blob.digest}", blob.size)


def checked_manifest(content: bytes, where: str) -> Manifest:
    """Parse a manifest from a registry."""
    try:
        return read_manifest(content)
    except StoreError as error:
        raise RegistryError(f"{where}: {error}") from error
