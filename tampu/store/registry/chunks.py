"""The chunk scheduler of a download: which connection downloads which range of a blob.

A single connection gets everything that is missing as one chunk, since each request costs; when
others join, it keeps the start. Chunks are handed out in order; at the end, slow ones are split.

Pure bookkeeping under one lock, without file or network access.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

MIN_SPLIT_BYTES = 256 << 10  # no chunk is split into smaller ones
STALLED_S = 5.0  # a chunk without data for so long is taken over whole
MIN_SPLIT_S = 1.0  # faster chunks are not split: data in flight would be lost
_NOTIFY_BYTES = 512 << 10  # so much more in a row, and those who wait are woken


class Ranges:
    """A set of byte positions, as sorted, disjoint half-open ranges."""

    def __init__(self, ranges: Iterable[Sequence[int]] = ()) -> None:
        self._ranges: list[tuple[int, int]] = []
        for start, end in ranges:
            self.add(start, end)

    def add(self, start: int, end: int) -> None:
        """Add the positions in [start, end)."""
        if start >= end:
            return
        first = bisect_left(self._ranges, start, key=lambda r: r[1])
        last = first
        while last < len(self._ranges) and self._ranges[last][0] <= end:
            start = min(start, self._ranges[last][0])
            end = max(end, self._ranges[last][1])
            last += 1
        self._ranges[first:last] = [(start, end)]

    def gap(self, position: int, end: int) -> tuple[int, int] | None:
        """Return the first missing range in [position, end); None if there is none."""
        for start, stop in self._ranges:
            if position < start:
                return (position, min(start, end)) if position < end else None
            position = max(position, stop)
        return (position, end) if position < end else None

    @property
    def frontier(self) -> int:
        """The number of positions from 0 without a gap."""
        return self._ranges[0][1] if self._ranges and self._ranges[0][0] == 0 else 0

    @property
    def total(self) -> int:
        """The number of positions."""
        return sum(end - start for start, end in self._ranges)

    def as_list(self) -> list[tuple[int, int]]:
        """Return the ranges."""
        return list(self._ranges)


@dataclass(slots=True, eq=False)
class Chunk:
    """A range of a blob that one connection downloads.

    Attributes:
        start: of the range.
        position: of the next byte; earlier ones are written or being written.
        end: of the range; lowered when another connection takes over the rest.
        began_s: when it was taken.
        touched_s: when data was last received.
    """

    start: int
    position: int
    end: int
    began_s: float
    touched_s: float

    def is_slow(self, now: float) -> bool:
        """Whether it will take long at its average rate."""
        elapsed, came = now - self.began_s, self.position - self.start
        left = self.end - self.position
        return elapsed >= MIN_SPLIT_S and left * elapsed >= MIN_SPLIT_S * came


class ChunkScheduler:
    """Assigns the missing ranges of a blob to connections."""

    def __init__(
        self,
        size: int,
        done: Iterable[Sequence[int]] = (),
        chunk_size: int = 16 << 20,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Divide `size` bytes into chunks, except the ranges in `done`."""
        self.size = size
        self._done = Ranges(done)
        self._chunk_size = chunk_size
        self._clock = clock
        self._active: list[Chunk] = []
        self._told = 0
        self._changed = threading.Condition()

    def take(self) -> Chunk | None:
        """Return a chunk to download; None if there is none now.

        The first unassigned range; else the rest of a stalled chunk, or half the rest of the
        largest one if it is slow.
        """
        with self._changed:
            self._share()
            chunk = self._unclaimed() or self._stolen()
            if chunk is not None:
                self._active.append(chunk)
            return chunk

    def claim(self, chunk: Chunk, count: int) -> tuple[int, int]:
        """Reserve the position of received bytes; return it and the number of bytes to write.

        It is less than `count` if another connection has taken over the rest of the chunk. The
        caller writes the bytes and then calls `filled`.
        """
        with self._changed:
            wanted = max(0, min(count, chunk.end - chunk.position))
            position = chunk.position
            chunk.position += wanted
            chunk.touched_s = self._clock()
            return position, wanted

    def filled(self, position: int, count: int) -> None:
        """Record that claimed bytes are written."""
        with self._changed:
            self._done.add(position, position + count)
            frontier = self._done.frontier
            if frontier - self._told >= _NOTIFY_BYTES or frontier == self.size:
                self._told = frontier
                self._changed.notify_all()

    def release(self, chunk: Chunk) -> None:
        """Return a chunk, finished or not."""
        with self._changed:
            self._active.remove(chunk)
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> None:
        """Wait until something changes, or until the timeout."""
        with self._changed:
            self._changed.wait(timeout_s)

    def notify(self) -> None:
        """Wake all waiting threads."""
        with self._changed:
            self._changed.notify_all()

    @property
    def completed(self) -> int:
        """The number of bytes written."""
        with self._changed:
            return self._done.total

    @property
    def frontier(self) -> int:
        """The number of bytes written from the start without a gap."""
        with self._changed:
            return self._done.frontier

    @property
    def is_done(self) -> bool:
        """Whether all bytes are written."""
        return self.frontier == self.size

    def done(self) -> list[tuple[int, int]]:
        """Return the written ranges."""
        with self._changed:
            return self._done.as_list()

    def _unclaimed(self) -> Chunk | None:
        claimed = Ranges(self._done.as_list())
        for chunk in self._active:
            claimed.add(chunk.start, chunk.end)
        gap = claimed.gap(0, self.size)
        if gap is None:
            return None
        start, end = gap
        now = self._clock()
        if self._active:
            end = min(end, start + self._chunk_size)
        return Chunk(start, start, end, now, now)

    def _share(self) -> None:
        """Limit active chunks to the usual size, so that others can take the rest."""
        for chunk in self._active:
            chunk.end = min(chunk.end, chunk.position + self._chunk_size)

    def _stolen(self) -> Chunk | None:
        now = self._clock()
        open_chunks = [chunk for chunk in self._active if chunk.position < chunk.end]
        stalled = [chunk for chunk in open_chunks if now - chunk.touched_s >= STALLED_S]
        if not open_chunks:
            return None
        if stalled:
            victim = stalled[0]
            middle = victim.position
        else:
            victim = max(open_chunks, key=lambda chunk: chunk.end - chunk.position)
            middle = (victim.position + victim.end) // 2
            if victim.end - victim.position < 2 * MIN_SPLIT_BYTES or not victim.is_slow(now):
                return None
        share = Chunk(middle, middle, victim.end, now, now)
        victim.end = middle
        return share
