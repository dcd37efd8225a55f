"""How much time drafts may lose: the limit that holds whatever is estimated wrongly.

Which drafts win follows from estimates: how often guesses are right, and what steps take. Where an
estimate is wrong, or is still a guess, a step with drafts takes longer than its tokens are worth.
What is lost is taken from a budget, which grows with the time that passes (as a token bucket does),
and what is won is put back. As long as it is empty there are no drafts.
"""

from __future__ import annotations

_RATE = 0.01  # of the time that passes may be lost
_FIRST = 0.5  # steps without drafts: what may be lost before any time has passed
_MOST = 1.0  # the same: what may be lost at once


class DraftBudget:
    """The time that drafts may still lose."""

    def __init__(self) -> None:
        """Allow drafts."""
        self._left: float | None = None  # seconds; None: no step is known yet

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left."""
        return self._left is not None and self._left <= 0

    def add(self, passed: float, lost: float, step: float) -> None:
        """Note a step.

        Args:
            passed: the seconds that it took.
            lost: how many more than its tokens would have taken without drafts; negative: fewer.
            step: how many a step without drafts takes.
        """
        left = _FIRST * step if self._left is None else self._left
        self._left = min(left + _RATE * passed - lost, _MOST * step)
