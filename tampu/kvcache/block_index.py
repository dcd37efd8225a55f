"""Blocks of rows, found by the tokens that they follow, wherever their bytes are.

A block's name has the digest of the block before it and its own, which follows from that and from
its tokens; so the names are the index.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import IO, NamedTuple, Protocol

import numpy as np

from tampu.errors import SnapshotError
from tampu.kvcache.block_file import (
    CacheKey,
    Description,
    PrefixTokens,
    Present,
    block_parts,
    read_description,
    read_rows_into,
    read_rows_of,
)
from tampu.ml.rows import Bytes

log = logging.getLogger("tampu.kvcache")

SUFFIX = ".rows"
_MAX_COMPARED = 256  # blocks after another whose first tokens are compared
_NAME = re.compile(r"([0-9a-f]{32})-([0-9a-f]{32})-(\d{1,9})-(\d{1,12})\.rows")


class _Name(NamedTuple):
    """What a file's name says: the digest of its block, and its numbers of tokens and rows."""

    digest: bytes
    tokens: int
    rows: int


class BlockStorage(Protocol):
    """Where the bytes of a model's blocks are, by name, up to a limit. Any thread may use it.

    Attributes:
        key: of the model.
    """

    key: CacheKey

    def names(self) -> list[str] | None:
        """Return the names of all blocks; None if they are those of the last call."""
        ...

    def open(self, name: str) -> IO[bytes]:
        """Return the bytes of a block as a file; FileNotFoundError if it was deleted."""
        ...

    def write(
        self, name: str, parts: Sequence[bytes | memoryview], spared: Collection[str]
    ) -> bool:
        """Keep a block; the least recently used others are deleted, but not the spared ones.

        Return whether it is kept.
        """
        ...

    def use(self, names: Sequence[str]) -> None:
        """Count these blocks of a sequence as used now, earlier ones after later ones.

        So the end of a sequence is deleted before its beginning.
        """
        ...

    def delete(self, name: str) -> None:
        """Delete a block, if it is there."""
        ...

    def place(self, name: str) -> str:
        """Return where a block is, for log lines."""
        ...


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """A block, after others.

    Attributes:
        name: in its storage.
        parent: digest of the block before it.
        digest: its own.
        start: position of its first token.
        end: the position after its last one.
        rows: how many rows of all groups it has.
        used: the position up to which its tokens are those that were looked for.
    """

    name: str
    parent: bytes
    digest: bytes
    start: int
    end: int
    rows: int
    used: int


@dataclass(slots=True)
class BlockIndex:
    """The blocks of one model. Any thread may use it.

    Attributes:
        storage: has their bytes.
    """

    storage: BlockStorage
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _children: dict[bytes, set[_Name]] = field(default_factory=dict)
    _descriptions: dict[bytes, Description] = field(default_factory=dict)

    def find(self, tokens: PrefixTokens) -> list[StoredBlock]:
        """Return the blocks that together are the longest beginning of some tokens."""
        return self._beginnings(tokens)[0]

    def find_beginning(self, tokens: PrefixTokens) -> list[StoredBlock]:
        """Return the same, and a block of which only the first tokens are those wanted."""
        beginnings, root = self._beginnings(tokens), tokens.root(self.storage.key.digest)
        best = beginnings[0]
        for chain in beginnings:
            parent, at = (chain[-1].digest, chain[-1].end) if chain else (root, 0)
            with self._lock:
                names = list(self._children.get(parent, ()))[:_MAX_COMPARED]
            for name in names:
                used = best[-1].used if best else 0
                block = _block(parent, name, at)
                description = self.describe(block) if block.end > used else None
                count = description.common_tokens(tokens, at) if description else 0
                if count and at + count > used:
                    best = [*chain, replace(block, used=at + count)]
        return best

    def _beginnings(self, tokens: PrefixTokens) -> list[list[StoredBlock]]:
        """Return all chains of blocks that are a beginning of some tokens, the longest first."""
        root = tokens.root(self.storage.key.digest)
        with self._lock:
            self._refresh()
            found: list[list[StoredBlock]] = []
            left: list[tuple[bytes, list[StoredBlock]]] = [(root, [])]
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
                        block = _block(parent, name, at)
                        left.append((name.digest, [*chain, block]))
            return sorted(found, key=lambda chain: -chain[-1].end if chain else 0)

    def describe(self, block: StoredBlock) -> Description | None:
        """Return the description of a block; None if it cannot be read."""
        with self._lock:
            known = self._descriptions.get(block.digest)
        if known is not None:
            return known
        try:
            with self.storage.open(block.name) as file:
                found = read_description(file)
        except FileNotFoundError:
            return None
        except (OSError, SnapshotError) as error:
            self._drop(block, error)
            return None
        with self._lock:
            self._descriptions[block.digest] = found
        return found

    def read(
        self,
        tokens: PrefixTokens,
        block: StoredBlock,
        memory_of: Callable[[Present], Sequence[memoryview] | None],
    ) -> tuple[Present, Bytes | None] | None:
        """Return which rows a block has, and these; None if it cannot be used, with a log line.

        Args:
            tokens: of the sequence.
            block: of some of them.
            memory_of: from which rows there are, the memory to read them into; they are not
                returned then. None: they are returned.
        """
        try:
            with self.storage.open(block.name) as file:
                description = read_description(file)
                if not _is_of(description, tokens, block):
                    raise SnapshotError("it is the block of other tokens")
                present = description.mask()
                memory = memory_of(present)
                if memory is None or sum(map(len, memory)) != description.size:
                    return present, read_rows_of(file, description)
                read_rows_into(file, description, memory)
                return present, None
        except FileNotFoundError:  # deleted, to make room
            return None
        except (OSError, SnapshotError) as error:
            self._drop(block, error)
            return None

    def use(self, blocks: Sequence[StoredBlock]) -> None:
        """Count these blocks, one after the other in a sequence, as used now."""
        self.storage.use([block.name for block in blocks])

    def write(
        self,
        tokens: PrefixTokens,
        before: Sequence[StoredBlock],
        span: tuple[int, int],
        present: Present,
        rows: Sequence[Bytes],
    ) -> StoredBlock | None:
        """Write the block of the tokens in `span`; None if it is not kept.

        Args:
            tokens: of the sequence.
            before: all blocks before it; they are not deleted to make room.
            span: its first position, and the position after its last.
            present: (groups, tokens): which rows are there.
            rows: those of each group.
        """
        start, end = span
        parent = before[-1].digest if before else tokens.root(self.storage.key.digest)
        name = _Name(tokens.digest(parent, start, end), end - start, int(present.sum()))
        block = _block(parent, name, start)
        parts = block_parts(parent, tokens.identity(start, end), present, rows)
        if not self.storage.write(block.name, parts, {each.name for each in before}):
            return None
        with self._lock:
            same = [
                each
                for each in self._children.get(parent, ())
                if each.digest == name.digest and each != name
            ]
            for other in same:
                self.storage.delete(_block(parent, other, start).name)
                self._children[parent].discard(other)
            self._children.setdefault(parent, set()).add(name)
            self._descriptions.pop(name.digest, None)
        return block

    # -- inside ----------------------------------------------------------------------------------

    def _refresh(self) -> None:
        """List the blocks again if names have changed."""
        names = self.storage.names()
        if names is None:
            return
        self._children = {}
        for each in names:
            if match := _NAME.fullmatch(each):
                name = _Name(bytes.fromhex(match[2]), int(match[3]), int(match[4]))
                if name.tokens:
                    self._children.setdefault(bytes.fromhex(match[1]), set()).add(name)

    def _drop(self, block: StoredBlock, error: Exception) -> None:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        log.warning("prefix cache: %s is dropped: %s", self.storage.place(block.name), reason)
        self.storage.delete(block.name)
        name = _Name(block.digest, block.end - block.start, block.rows)
        with self._lock:
            self._children.get(block.parent, set()).discard(name)


def _block(parent: bytes, name: _Name, start: int) -> StoredBlock:
    file = f"{parent.hex()}-{name.digest.hex()}-{name.tokens}-{name.rows}{SUFFIX}"
    end = start + name.tokens
    return StoredBlock(file, parent, name.digest, start, end, name.rows, end)


def _is_of(description: Description, tokens: PrefixTokens, block: StoredBlock) -> bool:
    """Return whether a block has the tokens for which it was found."""
    if description.parent != block.parent or description.tokens != block.end - block.start:
        return False
    if block.used < block.end:
        return description.common_tokens(tokens, block.start) >= block.used - block.start
    return description.identity == tokens.identity(block.start, block.end)


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
