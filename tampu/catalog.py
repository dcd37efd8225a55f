"""The models that can be named: the built-in one, those of a folder, and single files."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from tampu.errors import ModelNotFoundError, TampuError
from tampu.modelinfo import ModelInfo, read_model_info

logger = logging.getLogger(__name__)

BUILT_IN = "demo"
SUFFIX = ".gguf"
TAG = ":latest"


def built_in_path() -> Path:
    """Return where the built-in model's file is, or would be."""
    return Path(str(resources.files("tampu") / "data" / f"{BUILT_IN}{SUFFIX}"))


def resolve(name_or_path: str, folder: Path | None = None) -> Path:
    """Return the file that a user means by a path, or by the name of a model.

    Raises:
        ModelNotFoundError: saying which models there are.
    """
    path = Path(name_or_path).expanduser()
    if path.is_file():
        return path
    if path.suffix == SUFFIX or "/" in name_or_path:
        reason = "is a folder; give the file in it" if path.is_dir() else "there is no such file"
        raise ModelNotFoundError(f"{name_or_path}: {reason}")
    return Catalog(folder).find(name_or_path)


@dataclass(frozen=True, slots=True)
class Entry:
    """A model of the catalog; `modified_s` is the file's time in seconds since 1970."""

    name: str
    info: ModelInfo
    modified_s: float


class Catalog:
    """Names and their files. A name may carry the tag `:latest`, and its case does not matter.

    The folder is looked at each time, so a file copied into it is there at once; what a file says
    is read again only when its time or size has changed.
    """

    def __init__(self, folder: Path | None = None, files: Sequence[Path] = ()) -> None:
        """Take the models of a folder (it need not exist) and of files, besides the built-in."""
        self._folder = folder
        self._files = files
        self._described: dict[Path, tuple[float, int, ModelInfo]] = {}

    def paths(self) -> dict[str, Path]:
        """Return the file of each name; a single file comes before one of the folder."""
        found = [*self._files, *self._folder_files(), built_in_path()]
        named: dict[str, Path] = {}
        for path in found:
            if path.is_file():
                named.setdefault(path.stem, path)
        return named

    def find(self, name: str) -> Path:
        """Return the file of a name.

        Raises:
            ModelNotFoundError: saying which models there are.
        """
        paths = self.paths()
        wanted = bare_name(name)
        for known, path in paths.items():
            if known.casefold() == wanted:
                return path
        there = ", ".join(sorted(paths)) or "none"
        raise ModelNotFoundError(f"model {name!r} not found (there are: {there})")

    def describe(self, name: str) -> Entry:
        """Return the entry of a name.

        Raises:
            ModelNotFoundError: if there is none.
            ModelFileError: if its file is not a sound model.
        """
        path = self.find(name)
        return self._entry(path.stem, path)

    def entries(self) -> list[Entry]:
        """Return all models whose files are sound, the last modified first."""
        return sorted(self._sound_entries(), key=lambda entry: -entry.modified_s)

    def _sound_entries(self) -> Iterable[Entry]:
        for name, path in self.paths().items():
            try:
                yield self._entry(name, path)
            except TampuError as error:
                logger.warning("left out of the list: %s: %s", path, error)

    def _entry(self, name: str, path: Path) -> Entry:
        try:
            status = path.stat()
        except OSError as error:
            raise ModelNotFoundError(f"model {name!r} not found") from error
        cached = self._described.get(path)
        if cached is None or cached[:2] != (status.st_mtime, status.st_size):
            cached = (status.st_mtime, status.st_size, read_model_info(path))
            self._described[path] = cached
        return Entry(name, cached[2], status.st_mtime)

    def _folder_files(self) -> list[Path]:
        if self._folder is None or not self._folder.is_dir():
            return []
        return sorted(path for path in self._folder.iterdir() if path.suffix == SUFFIX)


def bare_name(name: str) -> str:
    """Return a name without its tag `:latest`, in lower case."""
    return name.removesuffix(TAG).casefold()
