"""The Hugging Face Hub: a repository's GGUF files as a model.

The hub also speaks the registry protocol, but refuses split models there. So its own API is used:
the list of files has the SHA-256 of each, which is the blob's digest.

    GET /api/models/<user>/<repo>/tree/main?recursive=true    the files
    GET /<user>/<repo>/resolve/main/<file>                    one of them, through a redirect
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import quote

import msgspec

from tampu.errors import ModelNameError, RegistryError
from tampu.store.gguf_files import SUFFIX, Repository, read_repository
from tampu.store.manifests import (
    BAD_JSON,
    CONFIG_TYPE,
    Descriptor,
    Manifest,
    Media,
    ModelConfig,
    encode_config,
    encode_manifest,
)
from tampu.store.names import Digest, ModelName
from tampu.store.registry.options import RemoteOptions
from tampu.store.registry.remote import BlobSource, RemoteModel, checked_manifest
from tampu.store.registry.session import Session
from tampu.store.registry.transport import Transport

REVISION = "main"
MAX_LIST_BYTES = 8 << 20
MAX_PAGES = 20
MAX_SMALL_FILE_BYTES = 4 << 20
_NEXT = re.compile(r'<([^>]+)>;\s*rel="next"')
# Files of a repository with settings for the model -> the kinds of their layers.
_SETTINGS = {"template": Media.TEMPLATE, "system": Media.SYSTEM, "params": Media.PARAMS}


class LargeFile(msgspec.Struct, frozen=True):
    """A Git LFS file."""

    oid: str
    size: int


class HubFile(msgspec.Struct, frozen=True):
    """A file of a repository."""

    type: str
    path: str
    size: int = 0
    lfs: LargeFile | None = None


class HubRepository:
    """One repository of the hub."""

    def __init__(self, transport: Transport, name: ModelName, options: RemoteOptions) -> None:
        self.session = Session(transport, options.hub, token=options.hub_token, signs_in=False)
        self.name = name

    def find_model(self) -> RemoteModel:
        """Return the model of the tag, which is a quantization or a file name."""
        files = {file.path: file for file in self._files() if file.type == "file"}
        repository = read_repository(files)
        variant = repository.find(self.name.tag)
        if variant is None:
            raise RegistryError(f"pull model manifest: {self._missing(repository)}")
        contents: dict[Digest, bytes] = {}
        paths: dict[Digest, str] = {}
        layers: list[Descriptor] = []

        def add(kind: Media, path: str) -> None:
            digest, size = self._content(files[path], contents)
            paths[digest] = path
            layers.append(Descriptor(kind, digest, size, name=path.rpartition("/")[2]))

        for path in variant.files:
            add(Media.MODEL, path)
        if repository.projector:
            add(Media.PROJECTOR, repository.projector)
        for path in sorted(_SETTINGS.keys() & files.keys()):
            add(_SETTINGS[path], path)
        config = encode_config(ModelConfig(model_format="gguf", file_type=variant.tag.upper()))
        contents[Digest.of(config)] = config
        head = Descriptor(CONFIG_TYPE, Digest.of(config), len(config))
        content = encode_manifest(Manifest(config=head, layers=layers))
        return RemoteModel(
            content,
            checked_manifest(content, "invalid list of files from the hub"),
            lambda blob: BlobSource(self.session, self._address(paths[blob.digest]), blob.size),
            contents,
        )

    def _files(self) -> Iterator[HubFile]:
        path = f"/api/models/{self.name.repository}/tree/{REVISION}?recursive=true"
        for _ in range(MAX_PAGES):
            response = self.session.send("GET", path)
            if response.status == 404:
                response.close()
                raise RegistryError("pull model manifest: file does not exist")
            if response.status in (401, 403):
                response.close()
                raise RegistryError(
                    f"{self.name.repository} is private or does not exist: set HF_TOKEN to a token "
                    "that can read it"
                )
            self.session.expect(response, 200, doing="pull model manifest")
            next_page = _NEXT.search(response.headers.get("Link", ""))
            content = response.read_all(MAX_LIST_BYTES)
            try:
                yield from msgspec.json.decode(content, type=list[HubFile])
            except BAD_JSON as error:
                raise RegistryError(f"invalid list of files from the hub: {error}") from error
            if next_page is None:
                return
            path = next_page[1]
        raise RegistryError(f"{self.name.repository} has too many files")

    def _content(self, file: HubFile, contents: dict[Digest, bytes]) -> tuple[Digest, int]:
        """Return digest and size of a file; small files outside LFS are fetched."""
        if file.lfs is not None:
            try:
                return Digest(file.lfs.oid), file.lfs.size
            except ModelNameError as error:
                raise RegistryError(f"the hub has no valid SHA-256 for {file.path}") from error
        response = self.session.send("GET", self._address(file.path))
        self.session.expect(response, 200, doing="pull model blob")
        content = response.read_all(MAX_SMALL_FILE_BYTES)
        digest = Digest.of(content)
        contents[digest] = content
        return digest, len(content)

    def _address(self, path: str) -> str:
        return f"/{self.name.repository}/resolve/{REVISION}/{quote(path)}"

    def _missing(self, repository: Repository) -> str:
        tags = ", ".join(variant.tag for variant in repository.variants[:20])
        there = f"available: {tags}" if tags else f"it has no {SUFFIX} file"
        return f"{self.name.repository} has no {self.name.tag}; {there}"
