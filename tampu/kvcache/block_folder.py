"""Blocks of rows in a folder.

    <root>/<digest of the key>/<parent>-<digest>-<tokens>-<rows>.rows
    <root>/<digest of the key>/key.json

A file appears complete under its name or not at all. Its time says when it was used last. The
folder is shared by processes.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import IO

from tampu.kvcache.block_file import CacheKey
from tampu.kvcache.block_index import SUFFIX
from tampu.ml.atomic_file import atomic_file, remove_unlocked

log = logging.getLogger("tampu.kvcache")

KEY_FILE = "key.json"
_MIN_KEY = 8  # characters of a key that name it


@dataclass(slots=True)
class BlockFolder:
    """The blocks of one model in a folder that may have those of others. Any thread may use it.

    Attributes:
        root: of all models; it is made when it is first written to.
        limit_bytes: how much may be in it; the least recently used files are deleted first.
        key: of the model.
    """

    root: Path
    limit_bytes: int
    key: CacheKey
    _listed_ns: int = -1

    @property
    def folder(self) -> Path:
        """The folder of the model's blocks."""
        return self.root / self.key.digest.hex()

    def names(self) -> list[str] | None:
        """Return the names of all blocks; None if they are those of the last call."""
        try:
            changed_ns = self.folder.stat().st_mtime_ns
            if changed_ns == self._listed_ns:
                return None
            names = [each.name for each in self.folder.iterdir()]
        except OSError:
            names, changed_ns = [], -1
        self._listed_ns = changed_ns
        return names

    def open(self, name: str) -> IO[bytes]:
        """Return a block as a file."""
        return (self.folder / name).open("rb", buffering=0)

    def write(
        self, name: str, parts: Sequence[bytes | memoryview], spared: Collection[str]
    ) -> bool:
        """Write a block; return whether that was possible."""
        path = self.folder / name
        try:
            self._make_folder()
            if not self.make_room(sum(map(len, parts)), {self.folder / each for each in spared}):
                return False
            with atomic_file(path, mode=0o600, is_durable=False) as file:
                for part in parts:
                    file.write(part)
        except BlockingIOError:  # another process writes the same block
            return False
        except OSError as error:
            log.warning("prefix cache: %s cannot be written: %s", path, error.strerror)
            return False
        return True

    def use(self, names: Sequence[str]) -> None:
        """Count blocks as used now, earlier ones after later ones."""
        now = time.time_ns()
        for back, name in enumerate(reversed(names)):
            with suppress(OSError):
                os.utime(self.folder / name, ns=(now, now + 1000 * back))

    def delete(self, name: str) -> None:
        """Delete a block, if it is there."""
        with suppress(OSError):
            (self.folder / name).unlink()

    def place(self, name: str) -> str:
        """Return the path of a block."""
        return str(self.folder / name)

    def make_room(self, size: int, spared: Collection[Path] = ()) -> bool:
        """Delete the least recently used blocks of all models until `size` bytes more fit.

        Return whether they do; if not, all but the spared ones are deleted, or none if `size` is
        over the limit.
        """
        if size > self.limit_bytes:
            return False
        return shrink(self.root, self.limit_bytes - size, spared) is not None

    def _make_folder(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.folder.mkdir(exist_ok=True, mode=0o700)
        described = self.folder / KEY_FILE
        if not described.exists():
            with atomic_file(described, mode=0o600, is_durable=False) as file:
                file.write(json.dumps(self.key.facts, sort_keys=True).encode())


def kept_files(root: Path) -> list[tuple[Path, os.stat_result]]:
    """Return the files of all blocks below a root."""
    found = []
    for path in root.glob(f"*/*{SUFFIX}"):
        with suppress(OSError):
            found.append((path, path.stat()))
    return found


def shrink(root: Path, limit_bytes: int, spared: Collection[Path] = ()) -> int | None:
    """Delete the least recently used blocks of all models until so many bytes are left.

    Return how many bytes were deleted; None if the spared files are more than the limit.
    """
    for partial in root.glob(f"*/.*{SUFFIX}.partial"):  # of dead processes
        remove_unlocked(partial)
    found = sorted((status.st_mtime_ns, status.st_size, path) for path, status in kept_files(root))
    total = sum(length for _, length, _ in found)
    freed = 0
    for _, length, path in found:
        if total - freed > limit_bytes and path not in spared:
            path.unlink(missing_ok=True)
            freed += length
    return freed if total - freed <= limit_bytes else None


@dataclass(frozen=True, slots=True)
class KeptModel:
    """What the folder has of one model as it was loaded.

    Attributes:
        name: of the model's file; empty if that is unknown.
        key: the name of its folder.
        blocks: how many there are.
        size_bytes: of all of them.
        used_s: when one was used last, in seconds since 1970.
    """

    name: str
    key: str
    blocks: int
    size_bytes: int
    used_s: float

    def is_called(self, text: str) -> bool:
        """Return whether a text is its name, or the beginning of its key."""
        return text == self.name or (len(text) >= _MIN_KEY and self.key.startswith(text))


def kept_models(root: Path) -> list[KeptModel]:
    """Return what a folder has of each model, the most recently used first."""
    found = []
    listed = sorted(kept_files(root), key=lambda each: each[0])
    for key, files in groupby(listed, lambda each: each[0].parent.name):
        statuses = [status for _, status in files]
        name = ""
        with suppress(OSError, ValueError, AttributeError):
            name = str(json.loads((root / key / KEY_FILE).read_bytes()).get("name", ""))
        size = sum(status.st_size for status in statuses)
        used = max(status.st_mtime for status in statuses)
        found.append(KeptModel(name, key, len(statuses), size, used))
    return sorted(found, key=lambda each: each.used_s, reverse=True)


def delete_blocks(root: Path, key: str) -> int:
    """Delete all blocks of one model; return how many bytes they had."""
    freed = 0
    for path, status in kept_files(root):
        if path.parent.name == key:
            path.unlink(missing_ok=True)
            freed += status.st_size
    with suppress(OSError):  # another process may write there
        (root / key / KEY_FILE).unlink()
        (root / key).rmdir()
    return freed
