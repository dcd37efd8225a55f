"""Guesses of the next tokens of fake requests, right and wrong ones at random."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping

from tampu.runner.batch import Plan
from tampu.runner.drafts import Drafts
from tampu.runner.sequence import Sequence


class RandomDrafts:
    """Guesses some tokens of some sequences, each right with a probability of two thirds.

    Attributes:
        right: how many right guesses it has made.
        wrong: how many wrong ones.
        steps: for how many batches it was told the time.
    """

    def __init__(self, follow: Callable[[list[int]], int], seed: int) -> None:
        self.right = self.wrong = self.steps = 0
        self._follow = follow
        self._source = random.Random(seed)

    def choose(self, rooms: Mapping[Sequence, int], limit: int) -> Drafts:
        """Return guesses for a part of the sequences."""
        found = {}
        for sequence, room in rooms.items():
            count = min(room, limit, self._source.randrange(6))
            if count > 0:
                found[sequence] = self._guess(sequence, count)
                limit -= count
        return found

    def _guess(self, sequence: Sequence, count: int) -> tuple[int, ...]:
        history = sequence.tokens[: sequence.length].tolist()
        start = len(history)
        for _ in range(count):
            is_right = self._source.random() < 2 / 3
            history.append(self._follow(history) if is_right else self._source.randrange(22))
            self.right += is_right
            self.wrong += not is_right
        return tuple(history[start:])

    def needs_cells(self, rooms: Mapping[Sequence, int], limit: int) -> bool:  # noqa: ARG002
        """Return False: it takes none."""
        return False

    def are_expected(self, sequences: Iterable[Sequence]) -> bool:
        """Return True half of the time."""
        return any(self._source.random() < 0.5 for _ in sequences)

    def measured(self, plan: Plan, seconds: float, *, is_new: bool) -> None:  # noqa: ARG002
        """Count the batches."""
        assert plan.parts
        assert seconds >= 0
        self.steps += 1

    def ended(self, sequence: Sequence) -> None:
        """Know the sequence no more."""
