"""The models of other programs, which are only read.

Hugging Face's cache  models--<user>--<repo>/snapshots/<commit>/<file>, refs/main: a commit
LM Studio             <publisher>/<repo>/<file>
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from tampu.errors import ModelNameError
from tampu.store.gguf_files import SUFFIX, read_repository
from tampu.store.local_model import LocalModel, Origin, from_files
from tampu.store.locks import is_file, is_folder
from tampu.store.names import ModelName

HUB_HOST = "hf.co"
LM_STUDIO_HOST = "lmstudio"
_MAX_DEPTH = 3


def hub_models(cache: Path) -> Iterator[LocalModel]:
    """Yield the models in Hugging Face's cache."""
    for repository in _folders(cache):
        kind, *names = repository.name.split("--")
        if kind == "models" and len(names) == 2:
            snapshot = _snapshot(repository)
            if snapshot is not None:
                yield from _models(snapshot, HUB_HOST, names[0], names[1], Origin.HUB)


def lm_studio_models(folder: Path) -> Iterator[LocalModel]:
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
        yield from from_files(name.short, files, origin, projectors)


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
