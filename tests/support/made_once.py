"""Folders that tests make of the same sources are made once, for all processes and later runs.

They are in `.venv/tests`, under a hash of all that they depend on: a change of it makes new ones.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tools.ci.steps import ROOT, hash_of

FOLDER = Path(sys.prefix) / "tests"
_UNUSED_S = 7 * 24 * 3600


def key_of(sources: Sequence[str], versions: Sequence[str], root: Path = ROOT) -> str:
    """Return a hash of files, of what they import of `tests`, and of Python's and these versions.

    Args:
        sources: paths in the repository.
        versions: of packages.
        root: of the repository.
    """
    parts = [hash_of(sources, root), sys.version, *versions]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def made_once(
    key: str, name: str, destination: Path, make: Callable[[Path], object], folder: Path = FOLDER
) -> Path:
    """Copy a folder to `destination`, where the caller may change it, and return that.

    Args:
        key: of `key_of`.
        name: of the folder, among those with the same key.
        destination: a folder; it may exist.
        make: fills an empty folder. What fails leaves nothing. If two processes make the same at
            the same time, the second one's is dropped.
        folder: where folders are kept; those of keys that no run has used for a week are deleted.
    """
    kept = folder / key / name
    if not kept.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _delete_unused(folder)
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            made = Path(temporary) / name
            made.mkdir()
            make(made)
            kept.parent.mkdir(exist_ok=True)
            try:
                made.rename(kept)
            except OSError:
                if not kept.exists():
                    raise
    os.utime(kept.parent)
    shutil.copytree(kept, destination, dirs_exist_ok=True)
    return destination


def _delete_unused(folder: Path) -> None:
    oldest = time.time() - _UNUSED_S
    for each in folder.iterdir():
        if each.stat().st_mtime < oldest:
            shutil.rmtree(each, ignore_errors=True)
