"""Ranges of positions in a text."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


class Ranges:
    """Ranges in ascending order that do not overlap; each has a begin and an end."""

    def __init__(self, ranges: Sequence[tuple[int, int]] = ()) -> None:
        self._ranges = ranges
        self._ends = [end for _, end in ranges]

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def overlap(self, begin: int, end: int) -> bool:
        """Return whether one of them has a position from `begin` on and before `end`."""
        place = bisect_right(self._ends, begin)  # the first range that ends after the begin
        return place < len(self._ranges) and self._ranges[place][0] < end

    def within(self, begin: int, end: int) -> Ranges:
        """Return what they have of a part of the text, as positions in the part."""
        found: list[tuple[int, int]] = []
        for place in range(bisect_right(self._ends, begin), len(self._ranges)):
            first, last = self._ranges[place]
            if first >= end:
                break
            found.append((max(first, begin) - begin, min(last, end) - begin))
        return Ranges(found)

    def mapped(self, origins: Sequence[tuple[int, int]]) -> Ranges:
        """Return the positions in a changed text whose characters come from these ranges.

        Args:
            origins: for each position of the changed text, the begin and end that it comes from.
        """
        return Ranges(
            [
                (position, position + 1)
                for position, (begin, end) in enumerate(origins)
                if self.overlap(begin, max(end, begin + 1))
            ]
        )


NO_RANGES = Ranges()
