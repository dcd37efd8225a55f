"""Drafts: guesses of an answer's next tokens, which one step verifies together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, TypeAlias

from tampu.runner.batch import Plan
from tampu.runner.sequence import Sequence

Drafts: TypeAlias = dict[Sequence, tuple[int, ...]]
"""Guesses of the next tokens of some sequences, in order."""


class DraftSource(Protocol):
    """Guesses the next tokens of answers."""

    def choose(self, rooms: Mapping[Sequence, int], limit: int) -> Drafts:
        """Return drafts for the next step; those that are not worth their time are left out.

        Args:
            rooms: the sequences in the step, and how many drafts each may have.
            limit: how many all may have together.
        """

    def needs_cells(self, rooms: Mapping[Sequence, int], limit: int) -> bool:
        """Return whether `choose` takes cells after those of the computed tokens for a while.

        Then no step may be planned that has them.
        """

    def are_expected(self, sequences: Iterable[Sequence]) -> bool:
        """Return whether there will be drafts once the next token of each sequence is known.

        Then a GPU's next step waits for these tokens.
        """

    def measured(self, plan: Plan, seconds: float, *, is_new: bool) -> None:
        """Note how long a batch took, until the next one was launched.

        `is_new`: whether that includes building a graph, of this batch or the next.
        """

    def ended(self, sequence: Sequence) -> None:
        """Forget a sequence, which has given up its slot."""
