"""A registry for `pull` and `push`: manifests and blobs by the OCI protocol."""

from __future__ import annotations

from collections.abc import Callable
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
from tampu.store.registry.source import BlobSource
from tampu.store.registry.transport import Transport, TransportOptions, host_of

ACCEPT = f"{MANIFEST_TYPE}, {OCI_MANIFEST_TYPE}"


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

    def __init__(self, session: Session, name: ModelName) -> None:
        self.session = session
        self.name = name
        self.path = f"/v2/{name.repository}"

    def find_model(self) -> RemoteModel:
        """Return the model of the tag.

        Raises:
            RegistryError: if there is none, or its manifest is invalid.
            NetworkError: if a retry may help.
        """
        path = f"{self.path}/manifests/{self.name.tag}"
        response = self.session.send("GET", path, {"Accept": ACCEPT})
        if response.status == 404:
            response.close()
            raise RegistryError("pull model manifest: file does not exist")
        self.session.expect(response, 200, doing="pull model manifest")
        content = response.read_all(MAX_MANIFEST_BYTES)
        try:
            manifest = read_manifest(content)
        except StoreError as error:
            raise RegistryError(f"{host_of(response.url)}: {error}") from error
        return RemoteModel(content, manifest, self.source)

    def source(self, blob: Descriptor) -> BlobSource:
        """Return the source of a blob."""
        return BlobSource(self.session, f"{self.path}/blobs/{blob.digest}", blob.size)


def open_transport(options: RemoteOptions) -> Transport:
    """Return the connections for a transfer."""
    return Transport(
        TransportOptions(
            is_insecure=options.is_insecure,
            private_hosts=frozenset({options.default_registry.partition(":")[0]})
            - {"registry.ollama.ai"},
            connections=options.connections,
            proxies=options.proxies,
            read_timeout_s=options.read_timeout_s,
        )
    )


def open_registry(transport: Transport, name: ModelName, options: RemoteOptions) -> Registry:
    """Return the repository of a model."""
    host = options.host_of(name)
    session = Session(
        transport,
        options.base_of(name),
        realm_hosts=options.realm_hosts(host),
        sign=options.signer(),
        logins=dict(options.logins),
    )
    return Registry(session, name)
