"""A store: named models over blobs, in Ollama's layout on disk."""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from tampu.errors import ModelNameError, ModelNotFoundError, StoreError
from tampu.ml.atomic_file import atomic_file, make_folder, sync_folder, translate_os_errors
from tampu.store.blobs import Blobs
from tampu.store.layout import Layout
from tampu.store.locks import (
    Lease,
    files_in,
    is_file,
    is_folder,
    leased_digests,
    locked,
    remove_abandoned,
)
from tampu.store.manifests import Manifest, encode_manifest, read_manifest
from tampu.store.model import StoredModel, file_of
from tampu.store.names import Digest, ModelName, canonical_host
from tampu.store.shards import remove_stale_links

M = TypeVar("M")

logger = logging.getLogger(__name__)

HOUR_S = 3600.0
PARTIAL_S = 7 * 24 * HOUR_S
_LEVELS = 4  # host, namespace, model, tag


@dataclass(frozen=True, slots=True)
class DamagedEntry:
    """A damaged entry of a store: its path in the store, and what is wrong."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Listing(Generic[M]):
    """Models, last modified first, and damaged entries."""

    models: list[M] = field(default_factory=list)
    damaged: list[DamagedEntry] = field(default_factory=list)


class Store:
    """The models in one folder. Safe for concurrent threads and processes.

    An unknown name raises ModelNotFoundError, a damaged manifest StoreError. Methods that write
    raise StoreError if the folder is another program's or cannot be written.
    """

    def __init__(self, root: Path, *, is_writable: bool = True) -> None:
        """Use a folder, which need not exist; `is_writable` is False for another program's."""
        self.layout = Layout(root)
        self.blobs = Blobs(self.layout)
        self.is_writable = is_writable

    @property
    def root(self) -> Path:
        """The store's folder."""
        return self.layout.root

    # -- reading ---------------------------------------------------------------------------------

    def listing(self) -> Listing[StoredModel]:
        """Return all models; one damaged entry never hides the others."""
        models: dict[ModelName, StoredModel] = {}
        damaged: list[DamagedEntry] = []
        for name, path in self._entries(damaged):
            try:
                models.setdefault(name, self._read(name, path))
            except (StoreError, ModelNotFoundError) as error:
                if os.path.lexists(path):  # else it was just removed
                    damaged.append(DamagedEntry(str(path.relative_to(self.root)), str(error)))
        newest_first = sorted(models.values(), key=lambda model: -model.modified_s)
        return Listing(newest_first, damaged)

    def find(self, name: ModelName) -> ModelName | None:
        """Return a name as spelled in the store; None if it is not there."""
        return next((found for found, _ in self._candidates(name)), None)

    def model(self, name: ModelName) -> StoredModel:
        """Return a model."""
        for found, path in self._candidates(name):
            try:
                return self._read(found, path)
            except StoreError as error:
                raise StoreError(f"{found.short}: {error}; pull or create it again") from error
        raise ModelNotFoundError(f"model {name.short!r} not found")

    def blob_files(self) -> dict[Digest, Path]:
        """Return the files in the folder of blobs by digest, sorted."""
        found = {}
        for path in files_in(self.layout.blobs):
            with suppress(ModelNameError):  # such as Ollama's partial downloads
                found[Digest.parse_file_name(path.name)] = path
        return dict(sorted(found.items()))

    # -- writing ---------------------------------------------------------------------------------

    def check_writable(self) -> None:
        """Refuse to change another program's store."""
        if not self.is_writable:
            raise StoreError(
                f"{self.root} belongs to another program and is read-only; set TAMPU_MODELS to "
                "this folder to let tampu change it"
            )

    def lease(self) -> Lease:
        """Create a lease for blobs that no manifest names yet."""
        self.check_writable()
        return Lease(self.layout)

    def reserve(self, manifest: Manifest, lease: Lease) -> None:
        """Lease the blobs of a manifest, and check the space for those that are missing.

        Raises:
            DiskFullError: if they do not fit.
            StoreError: if the lease cannot be written.
        """
        blobs = manifest.distinct_blobs()
        lease.add(blob.digest for blob in blobs)
        missing = [blob.size for blob in blobs if not self.blobs.has(blob.digest, blob.size)]
        self.blobs.check_free_space(sum(missing))

    def write(self, name: ModelName, manifest: Manifest | bytes) -> StoredModel:
        """Write the manifest of a name; blobs that only its old model used are removed.

        Args:
            name: of the model; an existing spelling is kept.
            manifest: the manifest, or its bytes; its blobs must exist and be leased.

        Raises:
            StoreError: for a damaged manifest or missing blobs, or if it cannot be written; the
                old model is untouched.
        """
        self.check_writable()
        content = manifest if isinstance(manifest, bytes) else encode_manifest(manifest)
        self._check_blobs(read_manifest(content))
        with locked(self.layout.lock):
            name = self._own_spelling(name)
            old = self._references(self.layout.manifest(name))
            path = self.layout.manifest(name)
            with translate_os_errors(f"the manifest of {name.short}"):
                make_folder(self.layout.incoming)
                make_folder(path.parent)
                with atomic_file(path, partial=self.layout.temporary(), mode=0o644) as file:
                    file.write(content)
            self._remove_unused(old)
            return self._read(name, path)

    def copy(self, source: ModelName, destination: ModelName) -> StoredModel:
        """Give a model a second name."""
        with self.lease() as lease:
            model = self.model(source)
            lease.add(blob.digest for blob in model.manifest.blobs())
            return self.write(destination, model.content)

    def delete(self, name: ModelName) -> None:
        """Remove a model and the blobs that only it used."""
        self.check_writable()
        with locked(self.layout.lock):
            name = self._own_spelling(name)
            path = self.layout.manifest(name)
            if not path.is_file():
                raise ModelNotFoundError(f"model {name.short!r} not found")
            references = self._references(path)
            with translate_os_errors(f"the removal of {name.short}"):
                path.unlink()
                sync_folder(path.parent)
                self._remove_empty(path.parent)
            self._remove_unused(references)

    def collect_garbage(self, older_than_s: float = HOUR_S) -> list[Digest]:
        """Remove blobs that no manifest names and no lease holds, and abandoned downloads.

        Args:
            older_than_s: newer blobs are kept; another program may be about to name them.

        Returns:
            The removed blobs.
        """
        self.check_writable()
        now = time.time()
        with locked(self.layout.lock):
            old = {
                digest
                for digest, path in self.blob_files().items()
                if now - path.lstat().st_mtime >= older_than_s
            }
            removed = self._remove_unused(old)
            for path in files_in(self.layout.incoming):
                _remove_incoming(path, now)
        return removed

    # -- inside ----------------------------------------------------------------------------------

    def _entries(self, damaged: list[DamagedEntry]) -> Iterator[tuple[ModelName, Path]]:
        """Yield names and their manifests; those with invalid names go into `damaged`."""
        for folder in self.layout.manifest_folders:
            for path in sorted(self._below(folder, _LEVELS, damaged)):
                if path.name.startswith("."):  # such as .DS_Store
                    continue
                try:
                    yield _name_of(path.relative_to(folder)), path
                except ModelNameError as error:
                    damaged.append(DamagedEntry(str(path.relative_to(self.root)), str(error)))

    def _below(self, folder: Path, levels: int, damaged: list[DamagedEntry]) -> Iterator[Path]:
        """Yield the paths `levels` levels down; those of a closed folder are damaged."""
        try:
            paths = files_in(folder)
        except OSError as error:
            damaged.append(DamagedEntry(str(folder.relative_to(self.root)), str(error.strerror)))
            return
        for path in paths:
            if levels == 1:
                yield path
            else:
                yield from self._below(path, levels - 1, damaged)

    def _candidates(self, name: ModelName) -> Iterator[tuple[ModelName, Path]]:
        """Yield the manifests of a name: the exact spelling first."""
        relative = name.relative_path
        for folder in self.layout.manifest_folders:
            if not is_folder(folder):  # as most are not: each request of the server looks here
                continue
            exact = folder / relative
            if is_file(exact):
                yield name, exact
                continue
            for path in _matching(folder, name):
                with suppress(ModelNameError):
                    found = _name_of(path.relative_to(folder))
                    if is_file(path):
                        yield found, path

    def _own_spelling(self, name: ModelName) -> ModelName:
        found = self.find(name)
        return found if found and self.layout.manifest(found).is_file() else name

    def _read(self, name: ModelName, path: Path) -> StoredModel:
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):  # reading a pipe would not end
                raise StoreError("the manifest is not a file")
            content, modified_s = path.read_bytes(), status.st_mtime
        except FileNotFoundError as error:
            raise ModelNotFoundError(f"model {name.short!r} not found") from error
        except OSError as error:
            raise StoreError(f"the manifest cannot be read: {error.strerror}") from error
        manifest = read_manifest(content)
        return StoredModel(name, manifest, Digest.of(content), modified_s, self.blobs, content)

    def _check_blobs(self, manifest: Manifest) -> None:
        for blob in manifest.blobs():
            if file_of(blob) is None and not self.blobs.has(blob.digest, blob.size):
                raise StoreError(f"the manifest names the missing blob {blob.digest.short}")

    def _references(self, path: Path) -> set[Digest]:
        """Return the blobs that a manifest names; none if it is missing or damaged."""
        try:
            return {blob.digest for blob in read_manifest(path.read_bytes()).blobs()}
        except (OSError, StoreError):
            return set()

    def _remove_unused(self, digests: set[Digest]) -> list[Digest]:
        """Remove those blobs that are unused; the caller holds the exclusive lock."""
        if not digests:
            return []
        listing = self.listing()
        if listing.damaged:  # the blobs of a damaged manifest are unknown
            logger.warning("kept unused blobs: %s is damaged", listing.damaged[0].path)
            return []
        named = {blob.digest for model in listing.models for blob in model.manifest.blobs()}
        named |= {model.digest for model in listing.models}  # newer Ollama's manifests are blobs
        unused = sorted(digests - named - leased_digests(self.layout))
        with translate_os_errors("the removal of blobs"):
            for digest in unused:
                self.blobs.path(digest).unlink(missing_ok=True)
        if unused:
            remove_stale_links(self.layout)
        return unused

    def _remove_empty(self, folder: Path) -> None:
        while folder != self.layout.manifests:
            try:
                folder.rmdir()
            except OSError:  # not empty
                return
            folder = folder.parent


def _name_of(path: Path) -> ModelName:
    host, namespace, model, tag = path.parts
    return ModelName(model, tag, namespace, host)


def _matching(folder: Path, name: ModelName) -> list[Path]:
    """Return the paths below a folder for a name in any spelling."""
    found = [folder]
    for level, wanted in enumerate(name.key):
        spelt = canonical_host if level == 0 else str.lower
        found = [path for parent in found for path in _open(parent) if spelt(path.name) == wanted]
    return sorted(found)


def _open(folder: Path) -> list[Path]:
    """Return the content of a folder; nothing of a closed one."""
    try:
        return files_in(folder)
    except OSError:
        return []


def _remove_incoming(path: Path, now: float) -> None:
    """Remove a file of a dead process, or an abandoned download."""
    with suppress(FileNotFoundError):
        if path.name.startswith("tmp-"):
            if now - path.stat().st_mtime >= HOUR_S:
                remove_abandoned(path)
        elif now - path.stat().st_mtime >= PARTIAL_S:
            path.unlink()
