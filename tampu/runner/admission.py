"""Which sequences get a slot, and which give theirs up, while slots or cells are few.

Slots may share the cells of one context. Then a sequence also waits until the cells that are left
are enough for its prompt, and gives up its slot when more urgent ones need its cells.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass

from tampu.kvcache import KVCacheManager
from tampu.runner.sequence import Sequence

_GROWTH = 64  # a new sequence leaves a part of all cells to each that runs, itself included
_NEXT_TOKENS = 2  # of a sequence: one in the batch in flight, one in the next


@dataclass(frozen=True, slots=True)
class Admission:
    """Decides by the cells that are left.

    Attributes:
        kv_manager: allocates cells.
        max_batch_tokens: the maximum number of tokens in a step.
        kv_unified: whether slots share the cells of one context; otherwise each has enough.
    """

    kv_manager: KVCacheManager
    max_batch_tokens: int
    kv_unified: bool

    def may_start(self, sequence: Sequence, running: Many[Sequence]) -> bool:
        """Return whether there are cells for a sequence beside those that run."""
        if not self.kv_unified or not running:
            return True
        growth = max(self.kv_manager.capacity // _GROWTH, _NEXT_TOKENS)
        beside = sum(each.uncomputed for each in running) + growth * (len(running) + 1)
        if self.kv_manager.available < beside:
            return False
        keys = sequence.keys[: sequence.reusable_end]
        table, length = sequence.cell_table, sequence.length
        return self.kv_manager.fits(table, keys, length, self.max_batch_tokens, beside)[1]

    def to_preempt(
        self, running: Many[Sequence], waiting: Many[Sequence], free: int, *, are_stuck: bool
    ) -> list[Sequence]:
        """Return which sequences wait from now on, so that more urgent ones can continue.

        Offline requests give up their slots for interactive ones that wait, the newest first. If
        there are too few cells for the next tokens of all, the least urgent one waits too.

        Args:
            running: the sequences that have slots, in the order of getting them.
            waiting: those that have none.
            free: the number of free slots.
            are_stuck: whether no running sequence can continue, because there are no free cells.
        """
        live = [each for each in waiting if not each.is_offline]
        wanted = max(len(live) - free, 0)
        if live and not wanted and not self.may_start(min(live, key=_urgency), running):
            wanted = 1
        found = [each for each in reversed(running) if each.is_offline and _can_wait(each)][:wanted]
        if not found and len(running) > 1 and (are_stuck or self._is_short(running)):
            found = [each for each in sorted(running, key=_urgency) if _can_wait(each)][-1:]
        return found

    def _is_short(self, running: Many[Sequence]) -> bool:
        """Return whether cells are too few for the next tokens of the sequences that run."""
        tokens = _NEXT_TOKENS * sum(not each.is_prefilling for each in running)
        return self.kv_unified and self.kv_manager.available < tokens


def _urgency(sequence: Sequence) -> tuple[bool, int]:
    return sequence.urgency


def _can_wait(sequence: Sequence) -> bool:
    """Return whether a running sequence may be preempted: it has no outputs of its prompt yet."""
    if sequence.slot is None or sequence.finish is not None:
        return False
    return not ((sequence.wants_rows or sequence.capture) and sequence.computed)
