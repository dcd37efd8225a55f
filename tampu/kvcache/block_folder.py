"""Blocks of rows in a folder, found by the tokens that they follow.

    <root>/<digest of the key>/<parent>-<digest>-<tokens>-<rows>.rows
    <root>/<digest of the key>/key.json

The file names are the index: a block's name has its own digest, which follows from its tokens
and from the digest of the block before it. A file appears complete under its name or not at all.
Its time says when it was used last; earlier blocks of a sequence count as used after later ones, so
that the end of a sequence is deleted first. The folder is shared by processes.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tampu.errors import SnapshotError
from tampu.kvcache.block_file import (
    CacheKey,
    Description,
    PrefixTokens,
    Present,
    block_parts,
    read_description,
    read_rows_of,
)
from tampu.ml.atomic_file import atomic_file, remove_unlocked
from tampu.ml.rows import Bytes

log = logging.getLogger("tampu.kvcache")

SUFFIX = ".rows"
KEY_FILE = "key.json"
_MIN_KEY = 8  # characters of a key that name it
_MAX_COMPARED = 256  # blocks after another whose first tokens are compared
_NAME = re.compile(r"([0-9a-f]{32})-([0-9a-f]{32})-(\d{1,9})-(\d{1,12})\.rows")


class _Name(NamedTuple):
    """What a file's name says: the digest of its block, and its numbers of tokens and rows."""

    digest: bytes
    tokens: int
    rows: int


@dataclass(frozen=True, slots=True)
class KeptBlock:
    """A block on disk, after others.

    Attributes:
        path: of the file.
        parent: digest of the block before it.
        digest: its own.
        start: position of its first token.
        end: the position after its last one.
        rows: how many rows of all groups it has.
        used: the position up to which its tokens are those that were looked for.
    """

    path: Path
    parent: bytes
    digest: bytes
    start: int
    end: int
    rows: int
    used: int


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
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _children: dict[bytes, set[_Name]] = field(default_factory=dict)
    _listed_ns: int = -1
    _descriptions: dict[bytes, Description] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """The folder of the model's blocks."""
        return self.root / self.key.digest.hex()

    def find(self, tokens: PrefixTokens) -> list[KeptBlock]:
        """Return the blocks that together are the longest beginning of some tokens."""
        return self._beginnings(tokens)[0]

    def find_beginning(self, tokens: PrefixTokens) -> list[KeptBlock]:
        """Return the same, and a block of which only the first tokens are those wanted."""
        beginnings = self._beginnings(tokens)
        best = beginnings[0]
        for chain in beginnings:
            parent, at = (chain[-1].digest, chain[-1].end) if chain else (self.key.digest, 0)
            with self._lock:
                names = list(self._children.get(parent, ()))[:_MAX_COMPARED]
            for name in names:
                used = best[-1].used if best else 0
                block = self._block(parent, name, at)
                description = self.describe(block) if block.end > used else None
                count = description.common_tokens(tokens.keys[at:]) if description else 0
                if count and at + count > used:
                    best = [*chain, replace(block, used=at + count)]
        return best

    def _beginnings(self, tokens: PrefixTokens) -> list[list[KeptBlock]]:
        """Return all chains of blocks that are a beginning of some tokens, the longest first."""
        with self._lock:
            self._refresh()
            found: list[list[KeptBlock]] = []
            left: list[tuple[bytes, list[KeptBlock]]] = [(self.key.digest, [])]
            while left:
                parent, chain = left.pop()
                found.append(chain)
                at = chain[-1].end if chain else 0
                digests: dict[int, bytes] = {}
                for name in self._children.get(parent, ()):
                    end = at + name.tokens
                    if end > len(tokens):
                        continue
                    if end not in digests:
                        digests[end] = tokens.digest(parent, at, end)
                    if digests[end] == name.digest:
                        block = self._block(parent, name, at)
                        left.append((name.digest, [*chain, block]))
            return sorted(found, key=lambda chain: -chain[-1].end if chain else 0)

    def describe(self, block: KeptBlock) -> Description | None:
        """Return the description of a block; None if it cannot be read."""
        with self._lock:
            known = self._descriptions.get(block.digest)
        if known is not None:
            return known
        try:
            with block.path.open("rb") as file:
                found = read_description(file)
        except FileNotFoundError:
            return None
        except (OSError, SnapshotError) as error:
            self._drop(block, error)
            return None
        with self._lock:
            self._descriptions[block.digest] = found
        return found

    def read(self, tokens: PrefixTokens, block: KeptBlock) -> tuple[Present, Bytes] | None:
        """Return which rows a block has, and these; None if it cannot be used, with a log line."""
        try:
            with block.path.open("rb") as file:
                description = read_description(file)
                if not _is_of(description, tokens, block):
                    raise SnapshotError("it is the block of other tokens")
                return description.mask(), read_rows_of(file, description)
        except FileNotFoundError:  # deleted by another process, to make room
            return None
        except (OSError, SnapshotError) as error:
            self._drop(block, error)
            return None

    def use(self, blocks: Sequence[KeptBlock]) -> None:
        """Count these blocks, one after the other in a sequence, as used now."""
        now = time.time_ns()
        for back, block in enumerate(reversed(blocks)):
            with suppress(OSError):
                os.utime(block.path, ns=(now, now + 1000 * back))

    def write(
        self,
        tokens: PrefixTokens,
        before: Sequence[KeptBlock],
        span: tuple[int, int],
        present: Present,
        rows: Sequence[Bytes],
    ) -> KeptBlock | None:
        """Write the block of the tokens in `span`; None if it cannot be kept.

        Args:
            tokens: of the sequence.
            before: all blocks before it; they are not deleted to make room.
            span: its first position, and the position after its last.
            present: (groups, tokens): which rows are there.
            rows: those of each group.
        """
        start, end = span
        parent = before[-1].digest if before else self.key.digest
        name = _Name(tokens.digest(parent, start, end), end - start, int(present.sum()))
        block = self._block(parent, name, start)
        try:
            self._make_folder()
            parts = block_parts(parent, tokens.identity(start, end), present, rows)
            if not self.make_room(sum(map(len, parts)), {each.path for each in before}):
                return None
            with atomic_file(block.path, mode=0o600, is_durable=False) as file:
                for part in parts:
                    file.write(part)
        except BlockingIOError:  # another process writes the same block
            return None
        except OSError as error:
            log.warning("prefix cache: %s cannot be written: %s", block.path, error.strerror)
            return None
        with self._lock:
            same = [
                each
                for each in self._children.get(parent, ())
                if each.digest == name.digest and each != name
            ]
            for other in same:
                self._block(parent, other, start).path.unlink(missing_ok=True)
                self._children[parent].discard(other)
            self._children.setdefault(parent, set()).add(name)
            self._descriptions.pop(name.digest, None)
        return block

    def make_room(self, size: int, spared: Collection[Path] = ()) -> bool:
        """Delete the least recently used blocks of all models until `size` bytes more fit.

        Return whether they do; if not, all but the spared ones are deleted.
        """
        if size > self.limit_bytes:
            return False
        return shrink(self.root, self.limit_bytes - size, spared) is not None

    # -- inside ----------------------------------------------------------------------------------

    def _block(self, parent: bytes, name: _Name, start: int) -> KeptBlock:
        file = f"{parent.hex()}-{name.digest.hex()}-{name.tokens}-{name.rows}{SUFFIX}"
        end = start + name.tokens
        return KeptBlock(self.folder / file, parent, name.digest, start, end, name.rows, end)

    def _make_folder(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.folder.mkdir(exist_ok=True, mode=0o700)
        described = self.folder / KEY_FILE
        if not described.exists():
            with atomic_file(described, mode=0o600, is_durable=False) as file:
                file.write(json.dumps(self.key.facts, sort_keys=True).encode())

    def _refresh(self) -> None:
        """List the folder again if names in it have changed."""
        try:
            changed_ns = self.folder.stat().st_mtime_ns
            if changed_ns == self._listed_ns:
                return
            names = [each.name for each in self.folder.iterdir()]
        except OSError:
            names, changed_ns = [], -1
        self._children = {}
        for each in names:
            if match := _NAME.fullmatch(each):
                name = _Name(bytes.fromhex(match[2]), int(match[3]), int(match[4]))
                if name.tokens:
                    self._children.setdefault(bytes.fromhex(match[1]), set()).add(name)
        self._listed_ns = changed_ns

    def _drop(self, block: KeptBlock, error: Exception) -> None:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        log.warning("prefix cache: %s is dropped: %s", block.path, reason)
        with suppress(OSError):
            block.path.unlink()
        name = _Name(block.digest, block.end - block.start, block.rows)
        with self._lock:
            self._children.get(block.parent, set()).discard(name)


def _is_of(description: Description, tokens: PrefixTokens, block: KeptBlock) -> bool:
    """Return whether a block has the tokens for which it was found."""
    if description.parent != block.parent or description.tokens != block.end - block.start:
        return False
    if block.used < block.end:
        wanted = block.used - block.start
        return description.common_tokens(tokens.keys[block.start : block.used]) == wanted
    return description.identity == tokens.identity(block.start, block.end)


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


def spans(start: int, end: int, cuts: Sequence[int], unit: int) -> list[tuple[int, int]]:
    """Divide the positions [start, end) at multiples of a unit, and at the given ones."""
    inside = [*range((start // unit + 1) * unit, end, unit), *cuts]
    edges = sorted({start, end, *(each for each in inside if start < each < end)})
    return list(pairwise(edges)) if end > start else []


def rows_by_group(data: Bytes, present: Present, sizes: Sequence[int]) -> list[Bytes] | None:
    """Divide a block's rows into those of each group; None if they do not fit the sizes.

    Args:
        data: of the block.
        present: (groups, tokens).
        sizes: bytes of one cell's rows in each group.
    """
    lengths = [int(each.sum()) * size for each, size in zip(present, sizes, strict=False)]
    if len(present) != len(sizes) or sum(lengths) != data.nbytes:
        return None
    edges = np.cumsum([0, *lengths])
    return [data[a:b] for a, b in pairwise(edges.tolist())]
