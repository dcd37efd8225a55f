"""Manifests: the blobs of a model, in the format of registries (OCI, Docker's version 2).

A manifest names a config and layers by digest and size; a layer's media type says what it contains.
The digest of the manifest's bytes is the model's id, so the bytes are kept as received.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import msgspec

from tampu.errors import ModelNameError, StoreError
from tampu.store.names import Digest

MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
OCI_MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.docker.container.image.v1+json"

MAX_MANIFEST_BYTES = 4 << 20
MAX_LAYERS = 4096
MAX_CONFIG_BYTES = 4 << 20
MAX_BLOB_BYTES = 1 << 50
_EMPTY = Digest.of(b"")

# What msgspec raises for invalid JSON.
BAD_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

# Annotations of a layer that is a file outside the store.
FILE_PATH = "dev.tampu.file.path"
FILE_MODIFIED_NS = "dev.tampu.file.modified-ns"


class Media(StrEnum):
    """The kind of a layer; the values are Ollama's media types."""

    MODEL = "application/vnd.ollama.image.model"
    PROJECTOR = "application/vnd.ollama.image.projector"
    ADAPTER = "application/vnd.ollama.image.adapter"
    DRAFT = "application/vnd.ollama.image.draft"
    TEMPLATE = "application/vnd.ollama.image.template"
    PROMPT = "application/vnd.ollama.image.prompt"
    SYSTEM = "application/vnd.ollama.image.system"
    PARAMS = "application/vnd.ollama.image.params"
    MESSAGES = "application/vnd.ollama.image.messages"
    LICENSE = "application/vnd.ollama.image.license"


class Descriptor(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A blob that a manifest names.

    Attributes:
        media_type: one of `Media`, or an unknown type.
        digest: its SHA-256.
        size: in bytes.
        source: the model that it comes from (`from` in the file).
        name: its name among layers of its kind.
        annotations: further properties.
    """

    media_type: str
    digest: Digest
    size: int
    source: str = msgspec.field(default="", name="from")
    name: str = ""
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


class Manifest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The config and layers of a model."""

    schema_version: int = 2
    media_type: str = MANIFEST_TYPE
    config: Descriptor
    layers: list[Descriptor]

    @property
    def size_bytes(self) -> int:
        """The total size of the config and all layers."""
        return sum(blob.size for blob in self.blobs())

    def blobs(self) -> Iterator[Descriptor]:
        """Yield the layers, then the config."""
        yield from self.layers
        yield self.config

    def distinct_blobs(self) -> list[Descriptor]:
        """Return the blobs without repetitions."""
        return list({blob.digest: blob for blob in self.blobs()}.values())

    def of_kind(self, *kinds: Media) -> list[Descriptor]:
        """Return the layers of the given kinds, in order."""
        return [layer for layer in self.layers if layer.media_type in kinds]


class ModelConfig(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A model's config blob: Ollama's fields, shown in lists without opening the weights."""

    model_format: str = ""
    model_family: str = ""
    model_families: list[str] | None = None
    model_type: str = ""
    file_type: str = ""
    renderer: str = ""
    parser: str = ""
    requires: str = ""
    capabilities: list[str] | None = None
    context_length: int = 0
    embedding_length: int = 0
    base_name: str = ""
    remote_host: str = ""
    remote_model: str = ""
    architecture: str = ""
    os: str = ""


def read_manifest(content: bytes) -> Manifest:
    """Parse a manifest; StoreError if it is invalid."""
    if len(content) > MAX_MANIFEST_BYTES:
        raise StoreError(f"the manifest is larger than {MAX_MANIFEST_BYTES >> 20} MiB")
    try:
        manifest = _DECODER.decode(content)
    except (*BAD_JSON, ModelNameError) as error:
        raise StoreError(f"the manifest is damaged: {error}") from error
    _check(manifest)
    return manifest


def encode_manifest(manifest: Manifest) -> bytes:
    """Encode a manifest."""
    return _ENCODER.encode(manifest)


def read_config(content: bytes) -> ModelConfig:
    """Parse a config; unknown fields are ignored. StoreError if it is invalid."""
    try:
        return msgspec.json.decode(content, type=ModelConfig)
    except BAD_JSON as error:
        raise StoreError(f"the model's config is damaged: {error}") from error


def encode_config(config: ModelConfig) -> bytes:
    """Encode a config."""
    return _ENCODER.encode(config)


def without_files(manifest: Manifest) -> Manifest:
    """Return a manifest without references to files on this machine."""
    ours = (FILE_PATH, FILE_MODIFIED_NS)
    layers = []
    for layer in manifest.layers:
        kept = {key: value for key, value in layer.annotations.items() if key not in ours}
        layers.append(msgspec.structs.replace(layer, annotations=kept))
    return msgspec.structs.replace(manifest, layers=layers)


def _check(manifest: Manifest) -> None:
    if manifest.schema_version != 2:
        raise StoreError(f"the manifest has schema version {manifest.schema_version}, not 2")
    if len(manifest.layers) > MAX_LAYERS:
        raise StoreError(f"the manifest has {len(manifest.layers)} layers, more than {MAX_LAYERS}")
    sizes: dict[Digest, int] = {}
    for blob in manifest.blobs():
        is_possible = 0 < blob.size <= MAX_BLOB_BYTES or (blob.size == 0 and blob.digest == _EMPTY)
        if not is_possible or sizes.setdefault(blob.digest, blob.size) != blob.size:
            raise StoreError(f"the manifest has an invalid size for {blob.digest.short}")
    if manifest.config.size > MAX_CONFIG_BYTES:
        raise StoreError("the manifest's config is too large")


def _from_json(kind: type, value: Any) -> Any:
    if kind is not Digest:
        raise NotImplementedError(kind)
    if not isinstance(value, str):
        raise ModelNameError("a digest must be a string")
    return Digest.parse(value)


def _to_json(value: object) -> str:
    if isinstance(value, Digest):
        return str(value)
    raise NotImplementedError(type(value))


_DECODER = msgspec.json.Decoder(Manifest, dec_hook=_from_json)
_ENCODER = msgspec.json.Encoder(enc_hook=_to_json)
