"""Exports a model to one file and imports it: a tar archive with an OCI image layout.

    oci-layout              {"imageLayoutVersion": "1.0.0"}
    index.json              the manifest's digest, and the model's name as an annotation
    blobs/sha256/<hex>      the manifest, the config and the layers

OCI tools can read it too. Import never uses a path of the archive as a path on disk: members are
looked up by the manifest's digests, and their bytes must match.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec

from tampu.errors import DigestMismatchError, ModelNameError, StoreError
from tampu.ml.atomic_file import atomic_file, translate_os_errors
from tampu.store.blobs import CHUNK, byte_counter, damaged
from tampu.store.locks import Lease
from tampu.store.manifests import (
    BAD_JSON,
    MANIFEST_TYPE,
    MAX_MANIFEST_BYTES,
    Descriptor,
    read_manifest,
    without_files,
)
from tampu.store.model import StoredModel
from tampu.store.names import Digest, ModelName
from tampu.store.store import Store

NAME = "org.opencontainers.image.ref.name"
_LAYOUT = b'{"imageLayoutVersion":"1.0.0"}'
_MAX_MEMBERS = 10_000
_MAX_INDEX_BYTES = 1 << 20
Progress = Callable[[int, int], None]


class _IndexEntry(msgspec.Struct, rename="camel"):
    digest: str
    size: int
    media_type: str = MANIFEST_TYPE
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


class _Index(msgspec.Struct, rename="camel"):
    manifests: list[_IndexEntry]
    schema_version: int = 2


def export_model(
    store: Store, name: ModelName, path: Path, progress: Progress | None = None
) -> None:
    """Export a model to one file, atomically; its bytes are verified meanwhile.

    Args:
        store: the source.
        name: of the model.
        path: of the file; an existing one is replaced.
        progress: called with the bytes written and the total.

    Raises:
        ModelNotFoundError: if there is no such model.
        StoreError: if a blob is missing or damaged, or the file cannot be written.
    """
    model = store.model(name)
    with translate_os_errors(str(path)), atomic_file(path) as file:
        _write(model, file, progress)


def import_model(
    store: Store, path: Path, name: ModelName | None = None, progress: Progress | None = None
) -> StoredModel:
    """Import a model from a file written by `export_model`.

    Args:
        store: the destination.
        path: of the file.
        name: of the model; None: the name in the file.
        progress: called with the bytes read and the total.

    Raises:
        StoreError: if the file is not an export, incomplete or damaged, or the store cannot be
            written; only complete blobs may have been added to the store.
        ModelNameError: if no name is given and the file has no valid one.
    """
    with _opened(path) as archive:
        return _Import(store, archive, path, progress).run(name)


def name_in(store: Store, path: Path) -> ModelName:
    """Return the name of the model in an exported file; raises as `import_model`."""
    with _opened(path) as archive:
        return _Import(store, archive, path, None).name()


@contextmanager
def _opened(path: Path) -> Iterator[tarfile.TarFile]:
    """Open an exported file; its errors become a StoreError."""
    try:
        with path.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as archive:
            yield archive
    except (tarfile.TarError, EOFError) as error:
        raise StoreError(f"{path.name} is not an exported model: {error}") from error
    except DigestMismatchError as error:
        raise StoreError(f"{path.name} is damaged: {error}") from error
    except OSError as error:
        raise StoreError(f"cannot read {path.name}: {error.strerror or error}") from error


def _write(model: StoredModel, file: IO[bytes], progress: Progress | None) -> None:
    content = model.portable_content()
    digest = Digest.of(content)
    entry = _IndexEntry(str(digest), len(content), annotations={NAME: str(model.name)})
    count = byte_counter(progress, model.size_bytes)
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        _add(archive, "oci-layout", _LAYOUT)
        _add(archive, "index.json", msgspec.json.encode(_Index([entry])))
        _add(archive, _member(digest), content)
        for blob in model.manifest.distinct_blobs():
            _add_blob(archive, model, blob, count)


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    archive.addfile(_header(name, len(content)), io.BytesIO(content))


def _add_blob(
    archive: tarfile.TarFile, model: StoredModel, blob: Descriptor, count: Callable[[int], None]
) -> None:
    with model.path_of(blob).open("rb") as file:
        hashed = _HashingReader(file, count)
        archive.addfile(_header(_member(blob.digest), blob.size), hashed)
        if hashed.digest() != blob.digest:
            raise damaged(blob.digest)


def _header(name: str, size: int) -> tarfile.TarInfo:
    header = tarfile.TarInfo(name)
    header.size = size
    header.mode = 0o644
    return header


def _member(digest: Digest) -> str:
    return f"blobs/sha256/{digest.hex}"


class _HashingReader(io.RawIOBase):
    """Hashes a file while it is read."""

    def __init__(self, file: IO[bytes], count: Callable[[int], None]) -> None:
        self._file = file
        self._count = count
        self._hash = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        content = self._file.read(CHUNK if size < 0 else size)
        self._hash.update(content)
        self._count(len(content))
        return content

    def digest(self) -> Digest:
        return Digest(self._hash.hexdigest())


class _Import:
    """The import of one file."""

    def __init__(
        self, store: Store, archive: tarfile.TarFile, path: Path, progress: Progress | None
    ) -> None:
        self._store = store
        self._archive = archive
        self._path = path
        self._progress = progress
        self._members: dict[str, tarfile.TarInfo] = {}

    def name(self) -> ModelName:
        self._find_members()
        return self._name(self._index_entry())

    def run(self, name: ModelName | None) -> StoredModel:
        self._find_members()
        entry = self._index_entry()
        content = self._read_small(_member(Digest.parse(entry.digest)), MAX_MANIFEST_BYTES)
        if str(Digest.of(content)) != entry.digest:
            raise StoreError(
                f"{self._path.name} is damaged: the manifest does not match its digest"
            )
        manifest = without_files(read_manifest(content))
        if manifest != read_manifest(content):
            raise StoreError(
                f"{self._path.name} refers to files on another machine: export the model again"
            )
        name = name or self._name(entry)
        with self._store.lease() as lease:
            self._store.reserve(manifest, lease)
            count = byte_counter(self._progress, manifest.size_bytes)
            for blob in manifest.distinct_blobs():
                self._import_blob(blob, lease, count)
            return self._store.write(name, content)

    def _find_members(self) -> None:
        for number, member in enumerate(self._archive):
            if number >= _MAX_MEMBERS:
                raise StoreError(f"{self._path.name} has too many members")
            if member.isreg():
                self._members.setdefault(member.name.removeprefix("./"), member)

    def _index_entry(self) -> _IndexEntry:
        try:
            index = msgspec.json.decode(
                self._read_small("index.json", _MAX_INDEX_BYTES), type=_Index
            )
        except BAD_JSON as error:
            raise StoreError(f"{self._path.name} has an invalid index.json") from error
        if len(index.manifests) != 1:
            raise StoreError(f"{self._path.name} contains {len(index.manifests)} models, not one")
        return index.manifests[0]

    def _name(self, entry: _IndexEntry) -> ModelName:
        text = entry.annotations.get(NAME)
        if not text:
            raise ModelNameError(f"{self._path.name} contains no model name: give one")
        return ModelName.parse(text)

    def _import_blob(self, blob: Descriptor, lease: Lease, count: Callable[[int], None]) -> None:
        member = self._member(_member(blob.digest))
        if member.size != blob.size:
            raise StoreError(f"{self._path.name} is damaged: wrong size of {blob.digest.short}")
        blobs = self._store.blobs
        if blobs.has(blob.digest, blob.size) and blobs.verify(blob.digest):
            count(blob.size)
        else:
            blobs.put_stream(self._open(member), lease, blob.digest, count)

    def _read_small(self, name: str, max_bytes: int) -> bytes:
        member = self._member(name)
        if member.size > max_bytes:
            raise StoreError(f"{self._path.name} is not an exported model: {name} is too large")
        return self._open(member).read(max_bytes)

    def _member(self, name: str) -> tarfile.TarInfo:
        if name not in self._members:
            raise StoreError(f"{self._path.name} is not an exported model, or truncated: no {name}")
        return self._members[name]

    def _open(self, member: tarfile.TarInfo) -> IO[bytes]:
        file = self._archive.extractfile(member)
        if file is None:
            raise StoreError(f"{self._path.name} is not an exported model")
        return file
