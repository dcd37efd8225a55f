"""Making room in a context that is full: which tokens go, and what of a sequence moves."""

from __future__ import annotations

from tampu.runner.sequence import Sequence


def shift_range(sequence: Sequence, keep: int) -> tuple[int, int]:
    """Return which tokens to drop from a full context so that half of what is not kept is free.

    Images stay whole: one that begins among the kept tokens stays, one that would be cut goes.
    """
    start = sequence.layout.group_end(keep)
    count = shift_count(sequence.computed, start, sequence.capacity)
    return start, min(sequence.layout.group_end(start + count), sequence.computed)


def shift_count(length: int, keep: int, capacity: int) -> int:
    """Return how many tokens to drop so that half of what is not kept is free again."""
    target = max((capacity - keep) // 2, 1)
    return max(target - (capacity - length), 0)


def cut(sequence: Sequence, start: int, end: int) -> None:
    """Take tokens out of a sequence; its cell_table is the caller's affair."""
    length, left = sequence.length, sequence.length - (end - start)
    for array in {id(each): each for each in (sequence.tokens, sequence.keys)}.values():
        array[start:left] = array[end:length].copy()
    sequence.layout = sequence.layout.without(start, end, length)
    sequence.length = left
    sequence.dropped += end - start
