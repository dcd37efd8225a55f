"""All models on this machine, by name.

They are looked up in this order, and an earlier one hides a later one of the same name: single
files, GGUF files in tampu's folder, tampu's store in that folder, Ollama's store, Hugging Face's
cache, LM Studio's folder, the built-in models. Nothing here opens a model's weights.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tampu.errors import ModelNameError, ModelNotFoundError
from tampu.ml.split_names import part_name, read_part_name
from tampu.settings.parsers import near_name
from tampu.settings.settings import Settings
from tampu.store.gguf_files import SUFFIX
from tampu.store.local_model import LocalModel, Origin, from_files, from_store
from tampu.store.locks import is_file, is_folder
from tampu.store.names import DEFAULT_TAG, ModelName
from tampu.store.other_programs import hub_models, lm_studio_models
from tampu.store.store import Store
from tampu.store.stored_models import DamagedEntry, Listing, StoredModels

BUILT_IN = ("demo", "digits", "demo-draft")
"""The names of the built-in models; requests that name no model go to the first that can answer."""

OLLAMA_SERVICE_MODELS = Path("/usr/share/ollama/.ollama/models")
_MAX_SHOWN_NAMES = 12


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
        built_in: Sequence[Path] = (),
    ) -> None:
        """Use these places; none of them needs to exist.

        Args:
            folder: of GGUF files and of tampu's store.
            files: single GGUF files.
            ollama: Ollama's stores.
            hub_cache: Hugging Face's cache.
            lm_studio: LM Studio's model folder.
            built_in: the files of the built-in models.
        """
        self.store = Store(folder) if folder else None
        self._folder = folder
        self._files = tuple(files)
        others = [path for path in ollama if folder is None or not _is_same(path, folder)]
        self._ollama = [StoredModels(path) for path in others]
        self._hub_cache = hub_cache
        self._lm_studio = lm_studio
        self._built_in = tuple(built_in)

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
            built_in=built_in_paths(),
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
                return from_store(store.model(name), origin)
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
            yield from (from_store(model, origin) for model in listing.models)
        yield from self._others()

    def _given(self) -> Iterator[LocalModel]:
        """Yield the single files and those of the folder."""
        for path in (*self._files, *_gguf_files(self._folder)):
            stem, number, count = read_part_name(path.name)
            if number == 1:
                parts = [path.with_name(part_name(stem, n, count)) for n in range(2, count + 1)]
                there = (path, *(part for part in parts if is_file(part)))
                yield from from_files(f"{_escaped(stem)}:{DEFAULT_TAG}", there, Origin.FILE)

    def _others(self) -> Iterator[LocalModel]:
        """Yield the models of other programs, and the built-in ones."""
        if self._hub_cache is not None:
            yield from hub_models(self._hub_cache)
        if self._lm_studio is not None:
            yield from lm_studio_models(self._lm_studio)
        built_in = [
            model
            for path in self._built_in
            for model in from_files(f"{path.stem}:{DEFAULT_TAG}", (path,), Origin.BUILT_IN)
        ]
        # They were installed together: they have one time, and so lists keep their order.
        yield from (replace(model, modified_s=built_in[0].modified_s) for model in built_in)

    def _stores(self) -> Iterator[tuple[StoredModels, Origin]]:
        if self.store is not None:
            yield self.store, Origin.STORE
        yield from ((store, Origin.OLLAMA) for store in self._ollama)


def built_in_paths() -> tuple[Path, ...]:
    """Return the paths of the built-in models' files, in the order of `BUILT_IN`."""
    folder = Path(__file__).parent.parent / "data"
    return tuple(folder / f"{name}{SUFFIX}" for name in BUILT_IN)


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
