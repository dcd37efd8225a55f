"""The drafts of a step: for which tokens there is room, and the plan that is made again with them.

A step is planned while the one before it computes, before its own tokens are known. Once they are,
the tokens after them may be guessed. If some are, the plan is taken back and made again with these
drafts; a text that cannot be guessed is planned as if there were none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from tampu.kvcache import KVCacheManager
from tampu.kvcache.checkpoints import ANSWER_UNIT
from tampu.runner.batch import Plan
from tampu.runner.drafts import Drafts, DraftSource
from tampu.runner.sequence import Sequence


class DraftPlanner:
    """Gets the drafts of steps in which all sequences decode.

    Attributes:
        source: guesses the next tokens of answers; None: nothing does.
    """

    def __init__(
        self, kv_manager: KVCacheManager, max_outputs: int, source: DraftSource | None
    ) -> None:
        """Start without drafts.

        Args:
            kv_manager: allocates cells.
            max_outputs: the maximum number of outputs of a step.
            source: guesses the next tokens of answers.
        """
        self.source = source
        self._kv_manager = kv_manager
        self._max_outputs = max_outputs
        self._chosen: Drafts = {}  # for the next plan

    def take(self, decoding: Iterable[Sequence]) -> Drafts:
        """Return the drafts of a plan; those with which one was taken back, or new ones."""
        drafts, self._chosen = self._chosen, {}
        return drafts or self._choose({each: each.computed for each in decoding})

    def withdraw(self, plan: Plan, running: Collection[Sequence]) -> bool:
        """Take back a plan that was made before its tokens were known, if drafts of them win.

        Returns:
            Whether it was taken back; the next plan has the drafts. If what guesses them takes
            cells, it is asked then.
        """
        are_offline = {part.sequence.is_offline for part in plan.parts}
        if len(are_offline) > 1 or any(part.is_prefill for part in plan.parts):
            return False
        starts = {part.sequence: part.start for part in plan.parts}
        if not self._needs_cells(starts):
            self._chosen = self._choose(starts)
            if not self._chosen:
                return False
        for part in plan.parts:
            if part.sequence in running:
                self._kv_manager.rollback(part.sequence.cell_table, part.start)
        return True

    def are_expected(self, plan: Plan) -> bool:
        """Return whether a plan is better taken back when its tokens are known (`withdraw`)."""
        sequences = (part.sequence for part in plan.parts)
        return self.source is not None and self.source.are_expected(sequences)

    def measured(self, plan: Plan, seconds: float, *, is_new: bool) -> None:
        """Note how long a batch took, until the next one was launched; as `DraftSource`."""
        if self.source is not None:
            self.source.measured(plan, seconds, is_new=is_new)

    def ended(self, sequence: Sequence) -> None:
        """Forget a sequence, which has given up its slot."""
        if self.source is not None:
            self.source.ended(sequence)

    def _choose(self, starts: Mapping[Sequence, int]) -> Drafts:
        """Return drafts for sequences whose last known tokens are at these positions."""
        if self.source is None or not starts:
            return {}
        rooms, limit = self._rooms(starts)
        return self.source.choose(rooms, limit) if limit > 0 else {}

    def _needs_cells(self, starts: Mapping[Sequence, int]) -> bool:
        if self.source is None:
            return False
        rooms, limit = self._rooms(starts)
        return limit > 0 and self.source.needs_cells(rooms, limit)

    def _rooms(self, starts: Mapping[Sequence, int]) -> tuple[dict[Sequence, int], int]:
        """Return how many drafts each sequence may have, and all together.

        They leave cells for the next tokens of all, and with recurrent layers none is at a
        checkpoint of its answer, so that a part ends there, with the state of a known token.
        """
        rooms = {each: _room(each, start) for each, start in starts.items()}
        limit = min(self._max_outputs - len(rooms), self._kv_manager.available - 2 * len(rooms))
        limit = min(limit, self._kv_manager.max_drafts)
        if self._kv_manager.has_states:
            for each, start in starts.items():
                rooms[each] = min(rooms[each], max(ANSWER_UNIT - 2 - start % ANSWER_UNIT, 0))
        return rooms, limit


def _room(sequence: Sequence, start: int) -> int:
    """Return how many drafts may follow a sequence's last known token, if that is at `start`.

    They end before its context and its number of tokens do.
    """
    is_known = sequence.length == start + 1 and sequence.generated > 0 and not sequence.awaited
    if not is_known or sequence.finish is not None or sequence.is_paused:
        return 0
    if sequence.capture:  # those that are wrong would be captured too
        return 0
    room, options = sequence.capacity - start, sequence.options
    if options.max_tokens is not None:
        room = min(room, options.max_tokens - sequence.generated)
    return room - 1 if options.draft_tokens is None else min(room - 1, options.draft_tokens)
