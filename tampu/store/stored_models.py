"""The models of a store by name: manifests over blobs, in Ollama's layout on disk. Only reads."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from tampu.errors import ModelNameError, ModelNotFoundError, StoreError
from tampu.store.blobs import Blobs
from tampu.store.layout import Layout
from tampu.store.locks import files_in, is_file, is_folder
from tampu.store.manifests import read_manifest
from tampu.store.model import StoredModel
from tampu.store.names import Digest, ModelName, canonical_host

M = TypeVar("M")

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


class StoredModels:
    """The models in one folder, which may be another program's.

    An unknown name raises ModelNotFoundError, a damaged manifest StoreError.
    """

    def __init__(self, root: Path) -> None:
        """Use a folder, which need not exist."""
        self.layout = Layout(root)
        self.blobs = Blobs(self.layout)

    @property
    def root(self) -> Path:
        """The store's folder."""
        return self.layout.root

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
