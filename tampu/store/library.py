"""All models on this machine, by name.

They are looked up in this order, and an earlier one hides a later one of the same name: single
files, GGUF files in tampu's folder, tampu's store in that folder, Ollama's store, Hugging Face's
cache, LM Studio's folder, the built-in model. Nothing here opens a model's weights. Files of other
programs are only read:

    Hugging Face's cache  models--<user>--<repo>/snapshots/<commit>/<file>, refs/main: a commit
    LM Studio             <publisher>/<repo>/<file>
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tampu.errors import ModelFileError, ModelNameError, ModelNotFoundError, StoreError
from tampu.ml.split_names import part_name, read_part_name
from tampu.settings.parsers import near_name
from tampu.settings.settings import Settings
from tampu.store.gguf_files import SUFFIX, read_repository
from tampu.store.locks import is_file, is_folder
from tampu.store.manifests import Media
from tampu.store.model import StoredModel
from tampu.store.names import DEFAULT_TAG, ModelName
from tampu.store.store import DamagedEntry, Listing, Store

BUILT_IN = "demo"
OLLAMA_SERVICE_MODELS = Path("/usr/share/ollama/.ollama/models")
HUB_HOST = "hf.co"
LM_STUDIO_HOST = "lmstudio"
_MAX_DEPTH = 3
_MAX_SHOWN_NAMES = 12


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
    def has_projector(self) -> bool:
        """Whether it has a projector for images, which can be used."""
        return bool(self.projector_paths)

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


class Library:
    """The places where models are looked up."""

    def __init__(
        self,
        folder: Path | None = None,
        files: Sequence[Path] = (),
        *,
        ollama: Sequence[Path] = (),
        hub_cache: Path | None = None,
        lm_studio: Path | None = None,
        built_in: Path | None = None,
    ) -> None:
        """Use these places; none of them needs to exist.

        Args:
            folder: of GGUF files and of tampu's store.
            files: single GGUF files.
            ollama: Ollama's stores.
            hub_cache: Hugging Face's cache.
            lm_studio: LM Studio's model folder.
            built_in: the file of the built-in model.
        """
        self.store = Store(folder) if folder else None
        self._folder = folder
        self._files = tuple(files)
        others = [path for path in ollama if folder is None or not _is_same(path, folder)]
        self._ollama = [Store(path, is_writable=False) for path in others]
        self._hub_cache = hub_cache
        self._lm_studio = lm_studio
        self._built_in = built_in

    @classmethod
    def from_settings(cls, settings: Settings, files: Sequence[Path] = ()) -> Library:
        """Return the library of the user's settings."""
        theirs = [settings.ollama_models] if settings.ollama_models else []
        if os.access(OLLAMA_SERVICE_MODELS, os.R_OK | os.X_OK):  # it may be closed to this user
            theirs.append(OLLAMA_SERVICE_MODELS)
        return cls(
            settings.models,
            files,
            ollama=theirs,
            hub_cache=settings.hub_cache,
            lm_studio=settings.lm_studio,
            built_in=built_in_path(),
        )

    def listing(self) -> Listing[LocalModel]:
        """Return all models; a damaged entry never hides the others."""
        damaged: list[DamagedEntry] = []
        found: dict[str, LocalModel] = {}
        for model in self._all(damaged):
            found.setdefault(model.name.lower(), model)
        return Listing(sorted(found.values(), key=lambda m: -m.modified_s), damaged)

    def find(self, text: str) -> LocalModel:
        """Return the model of a name, case-insensitive; the tag `latest` may be omitted.

        Raises:
            ModelNotFoundError: if there is none; the message lists the models.
            StoreError: if the model in the store is damaged.
        """
        name, problem = None, f"model {text[:200]!r} not found"
        try:
            name = ModelName.parse(text)
        except ModelNameError as error:
            problem = str(error)
        for model in self._given():
            if _is_named(model, text):
                return model
        for store, origin in self._stores() if name else ():
            if name and store.find(name):
                return _from_store(store.model(name), origin)
        for model in self._others():
            if _is_named(model, text):
                return model
        names = [bare_name(model.name) for model in self.listing().models]
        near = near_name(bare_name(text), names)
        hint = f": did you mean {near}?" if near else ""
        raise ModelNotFoundError(f"{problem}{hint} (there are: {listed(names) or 'none'})")

    def check_own(self, name: ModelName) -> None:
        """Refuse a model that tampu's own store, which is writable, does not have.

        Raises:
            ModelNotFoundError: if it is elsewhere, which the message says.
        """
        for other in self.listing().models:
            if other.name.lower() == name.short.lower() and other.origin is not Origin.STORE:
                raise ModelNotFoundError(
                    f"{name.short} is not in tampu's own store ({other.origin.value}), so it is "
                    f"read-only; `tampu create` with FROM {bare_name(name.short)} makes a copy "
                    "that can be changed"
                )

    def check_new(self, name: ModelName) -> None:
        """Refuse the name of a file, which comes before models of the store.

        Raises:
            ModelNameError: if a model of this name could not be found once it is there.
        """
        for model in self._given():
            if _is_named(model, name.short):
                raise ModelNameError(
                    f"{name.short} is the name of a file of the models' folder, {model.path.name}, "
                    "which comes before models of the store: choose another name"
                )

    def has(self, name: str) -> bool:
        """Whether there is a model of a name; raises StoreError if it is damaged."""
        try:
            self.find(name)
        except ModelNotFoundError:
            return False
        return True

    # -- inside ----------------------------------------------------------------------------------

    def _all(self, damaged: list[DamagedEntry]) -> Iterator[LocalModel]:
        yield from self._given()
        for store, origin in self._stores():
            listing = store.listing()
            damaged.extend(listing.damaged)
            yield from (_from_store(model, origin) for model in listing.models)
        yield from self._others()

    def _given(self) -> Iterator[LocalModel]:
        """Yield the single files and those of the folder."""
        for path in (*self._files, *_gguf_files(self._folder)):
            stem, number, count = read_part_name(path.name)
            if number == 1:
                parts = [path.with_name(part_name(stem, n, count)) for n in range(2, count + 1)]
                there = (path, *(part for part in parts if is_file(part)))
                yield from _from_files(f"{_escaped(stem)}:{DEFAULT_TAG}", there, Origin.FILE)

    def _others(self) -> Iterator[LocalModel]:
        """Yield the models of other programs, and the built-in one."""
        if self._hub_cache is not None:
            yield from _hub_models(self._hub_cache)
        if self._lm_studio is not None:
            yield from _lm_studio_models(self._lm_studio)
        if self._built_in is not None:
            name = f"{self._built_in.stem}:{DEFAULT_TAG}"
            yield from _from_files(name, (self._built_in,), Origin.BUILT_IN)

    def _stores(self) -> Iterator[tuple[Store, Origin]]:
        if self.store is not None:
            yield self.store, Origin.STORE
        yield from ((store, Origin.OLLAMA) for store in self._ollama)


def built_in_path() -> Path:
    """Return the path of the built-in model's file."""
    return Path(__file__).parent.parent / "data" / f"{BUILT_IN}{SUFFIX}"


def _from_store(model: StoredModel, origin: Origin) -> LocalModel:
    return LocalModel(
        name=model.name.short,
        id=model.digest.hex,
        size_bytes=model.size_bytes,
        modified_s=model.modified_s,
        origin=origin,
        stored=model,
    )


def _from_files(
    name: str, files: tuple[Path, ...], origin: Origin, projectors: tuple[Path, ...] = ()
) -> Iterator[LocalModel]:
    """Yield the model of these files; nothing if one is no regular file, or was just removed."""
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


def _hub_models(cache: Path) -> Iterator[LocalModel]:
    """Yield the models in Hugging Face's cache."""
    for repository in _folders(cache):
        kind, *names = repository.name.split("--")
        if kind == "models" and len(names) == 2:
            snapshot = _snapshot(repository)
            if snapshot is not None:
                yield from _models(snapshot, HUB_HOST, names[0], names[1], Origin.HUB)


def _lm_studio_models(folder: Path) -> Iterator[LocalModel]:
    """Yield the models in LM Studio's folder."""
    for publisher in _folders(folder):
        for repository in _folders(publisher):
            yield from _models(
                repository, LM_STUDIO_HOST, publisher.name, repository.name, Origin.LM_STUDIO
            )


def _models(
    folder: Path, host: str, namespace: str, model: str, origin: Origin
) -> Iterator[LocalModel]:
    repository = read_repository(_files_below(folder))
    projector = repository.projector
    projectors = (folder / projector,) if projector else ()
    for variant in repository.variants:
        try:
            name = ModelName(model, variant.tag, namespace, host)
        except ModelNameError:  # only its path can be used
            continue
        files = tuple(folder / file for file in variant.files)
        yield from _from_files(name.short, files, origin, projectors)


def _files_below(folder: Path) -> Iterator[str]:
    """Yield the paths of GGUF files below a folder, relative to it."""
    for parent, folders, files in os.walk(folder):
        below = Path(parent).relative_to(folder)
        if len(below.parts) >= _MAX_DEPTH:
            folders.clear()
        for file in files:
            if file.lower().endswith(SUFFIX) and is_file(Path(parent) / file):
                yield (below / file).as_posix()


def _snapshot(repository: Path) -> Path | None:
    """Return the snapshot folder of the branch `main`, else the newest."""
    snapshots = _folders(repository / "snapshots")
    try:
        main = (repository / "refs" / "main").read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        main = ""
    chosen = [folder for folder in snapshots if folder.name == main]
    newest = sorted(snapshots, key=lambda folder: folder.stat().st_mtime)
    return next(iter(chosen or newest[-1:]), None)


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if is_folder(path))
    except OSError:  # missing, or not readable
        return []


def _gguf_files(folder: Path | None) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == SUFFIX) if folder else []
    except OSError:  # missing, or not readable
        return []


def _escaped(text: str) -> str:
    """Return a file's name as the name of a model, which can be printed and sent.

    Control characters, and bytes that are not UTF-8, are written as `%E9`.
    """
    if text.isprintable():
        return text
    return "".join(
        letter
        if letter.isprintable()
        else "".join(f"%{byte:02X}" for byte in letter.encode("utf-8", "surrogateescape"))
        for letter in text
    )


def _is_named(model: LocalModel, text: str) -> bool:
    text = _escaped(text)
    return model.name.lower() in (text.lower(), f"{text}:{DEFAULT_TAG}".lower())


def listed(names: Sequence[str]) -> str:
    """Return names for a message, not more than a few."""
    more = len(names) - _MAX_SHOWN_NAMES
    return ", ".join(sorted(names)[:_MAX_SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")


def bare_name(name: str) -> str:
    """Return a name without the default tag."""
    return name.removesuffix(f":{DEFAULT_TAG}")


def _is_same(one: Path, other: Path) -> bool:
    return one == other or (is_folder(one) and is_folder(other) and one.samefile(other))
