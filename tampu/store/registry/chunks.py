"""Who downloads which part of a blob: chunks in order, and the rest of the slowest at the end.

Who is alone has all that is missing as one chunk, since each request costs; when others come, it
keeps the beginning.

Pure bookkeeping under one lock; no file and no network is touched here.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

MIN_SPLIT_BYTES = 256 << 10  # no chunk is divided into smaller ones
STALLED_S = 5.0  # a chunk that got nothing for so long is taken over whole
MIN_SPLIT_S = (
    1.0  # a chunk that will be done sooner is not divided: what is on its way would be lost
)
_NOTIFY_BYTES = 512 << 10  # so much more in a row, and those who wait are woken


class Ranges:
    """A set of byte positions, as half-open ranges in order that do not touch."""

    def __init__(self, ranges: Iterable[Sequence[int]] = ()) -> None:
        self._ranges: list[tuple[int, int]] = []
        for start, end in ranges:
            self.add(start, end)

    def add(self, start: int, end: int) -> None:
        """Add the positions from `start` to before `end`."""
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
        """Return the first range before `end` that is missing from `position` on."""
        for start, stop in self._ranges:
            if position < start:
                return (position, min(start, end)) if position < end else None
            position = max(position, stop)
        return (position, end) if position < end else None

    @property
    def frontier(self) -> int:
        """How many positions there are from 0 on without a gap."""
        return self._ranges[0][1] if self._ranges and self._ranges[0][0] == 0 else 0

    @property
    def total(self) -> int:
        """How many positions there are."""
        return sum(end - start for start, end in self._ranges)

    def as_list(self) -> list[tuple[int, int]]:
        """Return the ranges."""
        return list(self._ranges)


@dataclass(slots=True, eq=False)
class Chunk:
    """A part that one worker downloads.

    Attributes:
        start: where it begins.
        position: where the next byte goes; what is before it is there, or being written.
        end: where it ends; another worker may make it earlier.
        began_s: when it was taken.
        touched_s: when a byte came last.
    """

    start: int
    position: int
    end: int
    began_s: float
    touched_s: float

    def is_slow(self, now: float) -> bool:
        """Whether it will take long, at the pace that it has had."""
        elapsed, came = now - self.began_s, self.position - self.start
        left = self.end - self.position
        return elapsed >= MIN_SPLIT_S and left * elapsed >= MIN_SPLIT_S * came


class ChunkScheduler:
    """The parts of a blob that are missing."""

    def __init__(
        self,
        size: int,
        done: Iterable[Sequence[int]] = (),
        chunk_size: int = 16 << 20,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Divide `size` bytes, of which `done` are there, into chunks."""
        self.size = size
        self._done = Ranges(done)
        self._chunk_size = chunk_size
        self._clock = clock
        self._active: list[Chunk] = []
        self._told = 0
        self._changed = threading.Condition()

    def take(self) -> Chunk | None:
        """Return something to download; None if there is nothing just now.

        The first chunk that nobody has; else half of what the one with the most left has, if it is
        slow, or all of it if it is stalled.
        """
        with self._changed:
            self._share()
            chunk = self._unclaimed() or self._stolen()
            if chunk is not None:
                self._active.append(chunk)
            return chunk

    def claim(self, chunk: Chunk, count: int) -> tuple[int, int]:
        """Return where bytes of a chunk that have come go, and how many of them are still wanted.

        Fewer than `count` are, if the rest of the chunk was taken over by another worker. Nobody
        else writes there from now on; `filled` follows when they are written.
        """
        with self._changed:
            wanted = max(0, min(count, chunk.end - chunk.position))
            position = chunk.position
            chunk.position += wanted
            chunk.touched_s = self._clock()
            return position, wanted

    def filled(self, position: int, count: int) -> None:
        """Note that claimed bytes are written."""
        with self._changed:
            self._done.add(position, position + count)
            frontier = self._done.frontier
            if frontier - self._told >= _NOTIFY_BYTES or frontier == self.size:
                self._told = frontier
                self._changed.notify_all()

    def release(self, chunk: Chunk) -> None:
        """Give a chunk back, finished or not."""
        with self._changed:
            self._active.remove(chunk)
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> None:
        """Wait until something changes, or for so long."""
        with self._changed:
            self._changed.wait(timeout_s)

    def notify(self) -> None:
        """Wake all who wait."""
        with self._changed:
            self._changed.notify_all()

    @property
    def completed(self) -> int:
        """The bytes that are there."""
        with self._changed:
            return self._done.total

    @property
    def frontier(self) -> int:
        """The bytes that are there from the beginning on without a gap."""
        with self._changed:
            return self._done.frontier

    @property
    def is_done(self) -> bool:
        """Whether all is there."""
        return self.frontier == self.size

    def done(self) -> list[tuple[int, int]]:
        """Return the ranges that are there."""
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
        """Leave to others what is beyond a chunk's usual size; who is behind closes its answer."""
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
