"""How long steps of a few rows take, measured while they run, and how many drafts win by that.

A step reads all weights, whatever the number of its rows, so a few rows more cost little where
memory is what limits. How little depends on the machine, on the model (a mixture of experts reads
more experts for more rows), on the number of rows and on the length of the context. So the time of
each number of rows is measured, and a number that was not measured is taken from those beside it.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

_SAMPLES = 5  # their median counts, so that one that was disturbed does not
_KEPT = 512  # steps; then a time is forgotten, so that what was slow is tried again
_SLOPE = 0.06  # of the time of one row, for each further one, until times are known
_WORTH = 1.03  # a step with drafts must be faster by this: planning it is not measured by itself


class StepTimes:
    """The times of steps that decode, by their rows."""

    def __init__(self) -> None:
        """Know no times yet."""
        self._seconds: dict[int, deque[float]] = {}
        self._last: dict[int, int] = {}  # the number of the last step with so many rows
        self._steps = 0

    @property
    def is_known(self) -> bool:
        """Whether any time is known."""
        return bool(self._seconds)

    @property
    def rows(self) -> list[int]:
        """The numbers of rows whose times are known."""
        return sorted(self._seconds)

    def add(self, rows: int, seconds: float) -> None:
        """Note how long a step took."""
        self._steps += 1
        self._seconds.setdefault(rows, deque(maxlen=_SAMPLES)).append(seconds)
        self._last[rows] = self._steps
        for each in [each for each, step in self._last.items() if self._steps - step > _KEPT]:
            del self._seconds[each], self._last[each]

    def at(self, rows: int) -> float:
        """Return how long a step with so many rows takes; without any times, relative to one row.

        Times of numbers that were not measured lie on a line through those of two that were; as
        long as there are not two they grow by a typical slope.
        """
        if rows in self._seconds:
            return statistics.median(self._seconds[rows])
        known = self.rows
        if len(known) < 2:
            return (self.at(known[0]) / _typical(known[0]) if known else 1.0) * _typical(rows)
        place = bisect_left(known, rows)
        if 0 < place < len(known):
            first, last = known[place - 1], known[place]
        else:
            first, last = known[0], known[-1]
        slope = max(self.at(last) - self.at(first), 0.0) / (last - first)
        return max(self.at(first) + slope * (rows - first), self.at(first) / 2)

    def with_drafts(self, rows: int, more: int) -> float:
        """Return how long a step of so many rows takes, of which `rows` are not drafts.

        As long as no step was measured that has more rows than that, the time grows by a typical
        slope: a line through steps of fewer rows would include what these have in common. Drafts do
        not make a step faster: times that say so were measured while the machine was slower.
        """
        if max(self._seconds, default=0) > rows:
            return max(self.at(more), self.at(rows))
        return self.at(rows) * _typical(more) / _typical(rows)

    def can_win(self, rows: int, limit: int) -> bool:
        """Return whether drafts beside so many rows win if all of them are right.

        They do not as long as the time without them is not known: it is measured first.
        """
        if rows not in self._seconds:
            return False
        least = _WORTH * rows / self.at(rows)
        rungs = self._rungs(rows, limit)
        return any(more / self.with_drafts(rows, more) > least for more in rungs)

    def best(self, rows: int, limit: int, guesses: Sequence[tuple[float, int]]) -> list[int]:
        """Return how many tokens of each guess give the most tokens a second.

        Args:
            rows: of the step without drafts.
            limit: how many drafts there may be in all.
            guesses: how often a token of it is right, and its length. Its n-th token is of use if
                all before it are right too.
        """
        tokens = sorted(
            (
                (rate**number, place)
                for place, (rate, length) in enumerate(guesses)
                for number in range(1, length + 1)
            ),
            reverse=True,
        )
        most, drafts = _WORTH * rows / self.at(rows), 0
        expected, taken = float(rows), 0
        for more in self._rungs(rows, min(limit, len(tokens))):
            expected += sum(gain for gain, _ in islice(tokens, taken, more - rows))
            taken = more - rows
            rate = expected / self.with_drafts(rows, more)
            if rate > most:
                most, drafts = rate, taken
        counts = [0] * len(guesses)
        for _, place in tokens[:drafts]:
            counts[place] += 1
        return counts

    def depth(
        self, rows: int, limit: int, rates: Sequence[float], seconds: Callable[[int], float]
    ) -> tuple[int, int]:
        """Return of how many answers a draft model should guess how many tokens each; (0, 0): none.

        Args:
            rows: of the step without drafts.
            limit: how many drafts there may be in all.
            rates: how often a token of each answer is guessed, the highest first.
            seconds: how long the draft model takes for a token of so many answers.
        """
        limit = self._limit(rows, limit)
        few = {each - 1 for each in self._rungs(1, limit)}  # as for `best`, and graphs of guesses
        most, found = _WORTH * rows / self.at(rows), (0, 0)
        for count in _halves(len(rates)):
            expected = float(rows)
            for depth in range(1, limit // count + 1):
                expected += sum(rate**depth for rate in rates[:count])
                if depth not in few:
                    continue
                took = self.with_drafts(rows, rows + count * depth) + depth * seconds(count)
                if expected / took > most:
                    most, found = expected / took, (count, depth)
        return found

    def _rungs(self, rows: int, limit: int) -> list[int]:
        """Return the numbers of rows of steps with drafts: few of them, as each needs a graph."""
        limit = self._limit(rows, limit)
        return [
            each
            for each in range(rows + 1, rows + limit + 1)
            if each <= 4 or each % (1 << each.bit_length() - 2) == 0
        ]

    def _limit(self, rows: int, limit: int) -> int:
        """Return how many drafts may be tried beside so many rows.

        Steps have at most half as many rows again as those that were measured, so that what is
        slower than expected costs little, and no number before a jump of the time is left out.
        """
        most = max([rows, *self._seconds])
        return min(limit, most + max(most // 2, 1) - rows)


def _typical(rows: int) -> float:
    """Return the time of a step relative to that of one row, as far as one can know it."""
    return 1 + _SLOPE * (rows - 1)


def _halves(count: int) -> list[int]:
    """Return a number, its half, and so on."""
    return [count >> each for each in range(count.bit_length())]
