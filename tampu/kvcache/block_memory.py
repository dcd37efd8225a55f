"""Blocks of rows in the memory of this process, up to a limit."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import IO

from tampu.kvcache.block_file import CacheKey


@dataclass(slots=True)
class BlockMemory:
    """The blocks of one model. Any thread may use it.

    Attributes:
        limit_bytes: how much they may have; the least recently used are deleted first.
        key: of the model.
        size_bytes: how much they have.
    """

    limit_bytes: int
    key: CacheKey
    size_bytes: int = 0
    _blocks: OrderedDict[str, bytes] = field(default_factory=OrderedDict)
    _is_listed: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def names(self) -> list[str] | None:
        """Return the names of all blocks; None if they are those of the last call."""
        with self._lock:
            if self._is_listed:
                return None
            self._is_listed = True
            return [*self._blocks]

    def open(self, name: str) -> IO[bytes]:
        """Return a block as a file; its bytes are not copied."""
        with self._lock:
            content = self._blocks.get(name)
        if content is None:
            raise FileNotFoundError(name)
        return BytesIO(content)

    def write(
        self, name: str, parts: Sequence[bytes | memoryview], spared: Collection[str]
    ) -> bool:
        """Keep a copy of a block; return whether there was room."""
        size = sum(map(len, parts))
        if not self.make_room(size, {*spared, name}):
            return False
        content = b"".join(parts)
        with self._lock:
            self._remove(name)
            self._blocks[name] = content
            self.size_bytes += size
            self._is_listed = False
        return True

    def use(self, names: Sequence[str]) -> None:
        """Count blocks as used now, earlier ones after later ones."""
        with self._lock:
            for name in reversed(names):
                if name in self._blocks:
                    self._blocks.move_to_end(name)

    def delete(self, name: str) -> None:
        """Delete a block, if it is there."""
        with self._lock:
            self._remove(name)

    def place(self, name: str) -> str:
        """Return the name of a block."""
        return f"block {name} in memory"

    def make_room(self, size: int, spared: Collection[str] = ()) -> bool:
        """Delete the least recently used blocks until `size` bytes more fit; return if they do.

        If not, all but the spared ones are deleted, or none if they would never fit.
        """
        if size > self.limit_bytes:
            return False
        with self._lock:
            for name in [each for each in self._blocks if each not in spared]:
                if self.size_bytes + size <= self.limit_bytes:
                    break
                self._remove(name)
            return self.size_bytes + size <= self.limit_bytes

    def _remove(self, name: str) -> None:
        content = self._blocks.pop(name, None)
        if content is not None:
            self.size_bytes -= len(content)
            self._is_listed = False
