"""A model of a store: its manifest and the content of its layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tampu.errors import StoreError
from tampu.store.blobs import Blobs
from tampu.store.manifests import (
    FILE_MODIFIED_NS,
    FILE_PATH,
    MAX_CONFIG_BYTES,
    Descriptor,
    Manifest,
    Media,
    ModelConfig,
    encode_manifest,
    read_config,
    without_files,
)
from tampu.store.names import Digest, ModelName
from tampu.store.shards import weights_file

T = TypeVar("T")

_MAX_TEXT_BYTES = 16 << 20


class StoredMessage(msgspec.Struct, frozen=True):
    """A message that every conversation with a model starts with."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDefaults:
    """What a model of a store sets for its requests.

    Attributes:
        parameters: what applies unless a request says otherwise, by Ollama's names.
        system: the system message; empty if there is none.
        messages: prepended to every conversation.
    """

    parameters: Mapping[str, Any] = field(default_factory=dict)
    system: str = ""
    messages: tuple[Mapping[str, Any], ...] = ()

    def conversation(self, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Return a conversation with the model's own messages prepended.

        One that starts with a system message has no other, as in Ollama.
        """
        has_system = bool(messages) and messages[0].get("role") == "system"
        system = [{"role": "system", "content": self.system}]
        return [*(system if self.system and not has_system else ()), *self.messages, *messages]


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model of a store.

    Layers are read lazily; a missing, changed or damaged one raises StoreError.

    Attributes:
        name: as spelled in the store.
        manifest: its config and layers.
        digest: of the manifest's bytes: the model's id.
        modified_s: in seconds since 1970.
        blobs: of its store.
        content: the manifest's bytes.
    """

    name: ModelName
    manifest: Manifest
    digest: Digest
    modified_s: float
    blobs: Blobs
    content: bytes = field(repr=False)

    @property
    def size_bytes(self) -> int:
        """The total size of its blobs."""
        return self.manifest.size_bytes

    def portable_content(self) -> bytes:
        """Return the manifest's bytes without references to files on this machine."""
        manifest = without_files(self.manifest)
        return self.content if manifest == self.manifest else encode_manifest(manifest)

    def path_of(self, layer: Descriptor) -> Path:
        """Return the file of a layer, in the store or outside."""
        path = file_of(layer) or self.blobs.path(layer.digest)
        try:
            status = path.stat()
        except OSError as error:
            reason = "is missing: pull or create the model again"
            raise StoreError(f"{self.name.short}: its file {path.name} {reason}") from error
        modified = layer.annotations.get(FILE_MODIFIED_NS)
        if not path.is_file() or status.st_size != layer.size:
            raise StoreError(
                f"{self.name.short}: its file {path.name} has {status.st_size} bytes, not "
                f"{layer.size}: run `tampu verify-store --repair`, then pull or create it again"
            )
        if modified is not None and modified != str(status.st_mtime_ns):
            raise StoreError(f"{self.name.short}: {path} was changed: create the model again")
        return path

    def paths(self, *kinds: Media) -> list[Path]:
        """Return the files of the layers of the given kinds, in order."""
        return [self.path_of(layer) for layer in self.manifest.of_kind(*kinds)]

    @property
    def model_path(self) -> Path:
        """The file of the weights; the first shard, if they are split."""
        files = self.paths(Media.MODEL)
        if not files:
            raise StoreError(f"{self.name.short} has no GGUF file, so tampu cannot run it")
        return weights_file(self.blobs.layout, files)

    @property
    def config(self) -> ModelConfig:
        """Its config."""
        return read_config(self.blobs.read(self.manifest.config.digest, MAX_CONFIG_BYTES))

    @property
    def template(self) -> str:
        """Its own prompt template; empty if it has none."""
        return "".join(self._texts(Media.TEMPLATE, Media.PROMPT)[-1:])

    @property
    def system(self) -> str:
        """Its system message; empty if it has none."""
        return "".join(self._texts(Media.SYSTEM)[-1:])

    @property
    def licenses(self) -> list[str]:
        """Its license texts."""
        return self._texts(Media.LICENSE)

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Its default options, by Ollama's names."""
        merged: dict[str, Any] = {}
        for text in self._texts(Media.PARAMS):
            merged |= self._json(text, dict[str, Any])
        return merged

    @property
    def messages(self) -> list[StoredMessage]:
        """The messages that every conversation starts with."""
        texts = self._texts(Media.MESSAGES)
        return [message for text in texts for message in self._json(text, list[StoredMessage])]

    @property
    def defaults(self) -> StoredDefaults:
        """What it sets for its requests."""
        messages = tuple(map(msgspec.structs.asdict, self.messages))
        return StoredDefaults(parameters=self.parameters, system=self.system, messages=messages)

    def _texts(self, *kinds: Media) -> list[str]:
        layers = self.manifest.of_kind(*kinds)
        contents = [self.blobs.read(layer.digest, _MAX_TEXT_BYTES) for layer in layers]
        return [content.decode("utf-8", "replace") for content in contents]

    def _json(self, text: str, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(text, type=kind)
        except (msgspec.DecodeError, RecursionError) as error:
            raise StoreError(f"{self.name.short}: a layer is damaged: {error}") from error


def file_of(layer: Descriptor) -> Path | None:
    """Return the file outside the store that a layer references; None for a blob."""
    path = layer.annotations.get(FILE_PATH)
    return Path(path) if path else None
