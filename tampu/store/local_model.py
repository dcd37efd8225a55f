"""A model on this machine: its files, in a store or plain."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tampu.errors import ModelFileError, StoreError
from tampu.store.manifests import Media
from tampu.store.model import StoredModel


class Origin(StrEnum):
    """Where a model is stored."""

    FILE = "file"
    STORE = "store"
    OLLAMA = "ollama"
    HUB = "hub cache"
    LM_STUDIO = "LM Studio"
    BUILT_IN = "built in"


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model on this machine; `path` raises StoreError if a file is missing from the store.

    Attributes:
        name: the displayed name, with its tag.
        id: 64 hexadecimal digits that change with the model: a hash of its manifest, or of its
            name and its files' sizes and times.
        size_bytes: of all its files.
        modified_s: in seconds since 1970.
        origin: where it is stored.
        stored: its entry in a store; None for plain files.
        files: its weights, for plain files.
        projectors: its projectors for images, for plain files.
    """

    name: str
    id: str
    size_bytes: int
    modified_s: float
    origin: Origin
    stored: StoredModel | None = None
    files: tuple[Path, ...] = ()
    projectors: tuple[Path, ...] = ()

    @property
    def path(self) -> Path:
        """The file of its weights; the first shard, if they are split."""
        return self.stored.model_path if self.stored else self.files[0]

    @property
    def projector_paths(self) -> tuple[Path, ...]:
        """The files of its projectors; none if one is missing, which texts do not need."""
        try:
            return tuple(self.stored.paths(Media.PROJECTOR)) if self.stored else self.projectors
        except StoreError:
            return ()

    @property
    def projector_problem(self) -> str:
        """Why its projector cannot be used; empty if it can, or there is none."""
        try:
            if self.stored:
                self.stored.paths(Media.PROJECTOR)
        except StoreError as error:
            return f"images are refused: {error}"
        return ""

    def damaged(self, error: ModelFileError) -> ModelFileError:
        """Return an error of its file with the model's name and, for a store, the remedy."""
        if not self.stored and error.field == "magic":
            return ModelFileError(error.field, error.reason, f"{error.reason}: {self.name}")
        remedy = "run `tampu verify-store --repair`, then pull or create it again"
        reason = f"{error.reason}; {remedy}" if self.stored else error.reason
        return ModelFileError(f"the file of model {self.name} is damaged: {error.field}", reason)


def from_store(model: StoredModel, origin: Origin) -> LocalModel:
    """Return a model of a store."""
    return LocalModel(
        name=model.name.short,
        id=model.digest.hex,
        size_bytes=model.size_bytes,
        modified_s=model.modified_s,
        origin=origin,
        stored=model,
    )


def from_files(
    name: str, files: tuple[Path, ...], origin: Origin, projectors: tuple[Path, ...] = ()
) -> Iterator[LocalModel]:
    """Yield the model of these files; nothing if one is not a regular file, or was just removed."""
    try:
        statuses = [path.stat() for path in (*files, *projectors)]
    except OSError:
        return
    if not all(stat.S_ISREG(status.st_mode) for status in statuses):
        return
    identity = "\0".join(f"{status.st_size} {status.st_mtime_ns}" for status in statuses)
    yield LocalModel(
        name=name,
        id=hashlib.sha256(f"{name}\0{identity}".encode()).hexdigest(),
        size_bytes=sum(status.st_size for status in statuses),
        modified_s=max(status.st_mtime for status in statuses),
        origin=origin,
        files=files,
        projectors=projectors,
    )
