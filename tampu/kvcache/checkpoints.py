"""Where the states of recurrent layers are kept: the nearer the end of a sequence, the denser.

A conversation that continues elsewhere than at its end (a message is changed, an answer is asked
for again) mostly does so near its end, and computes again what lies between there and the last
state before. So the distance between kept states grows with the distance from the end, and a few
states are enough for a sequence of any length.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MIN_UNIT = 32
"""Tokens between checkpoints, at least."""

ANSWER_UNIT = 256
"""Tokens between the checkpoints of an answer, at least: each ends a batch of its own."""

KEPT_ENDS = 4
"""Checkpoints of a sequence that are not on its grid: where its last prompts and answers end."""

_MAX_UNIT = 256  # rather than a larger one, the beginning of a sequence has no checkpoints


@dataclass(frozen=True, slots=True)
class _Steps:
    """Distances between checkpoints.

    Attributes:
        unit: in tokens, near the end.
        span: the distance is twice as large from twice this many tokens before the end on, four
            times from four times on, and so forth.
        reach: so many tokens before the end and farther there are none.
    """

    unit: int
    span: int
    reach: int

    def at(self, before_end: npt.NDArray[np.int_]) -> npt.NDArray[np.int_]:
        """Return the distance between checkpoints so many tokens before the end."""
        doubled = np.log2(np.maximum(before_end // self.span, 1)).astype(np.int64)
        steps: npt.NDArray[np.int_] = self.unit << doubled
        return steps


@dataclass(frozen=True, slots=True)
class CheckpointGrid:
    """The positions of checkpoints in sequences: multiples of a step, which is a power of two.

    The step grows with the distance to the end, and with the length of the sequence. So what is on
    the grid of a sequence was on it already when the sequence was shorter.

    Attributes:
        states: the maximum number of checkpoints in a sequence.
    """

    states: int

    def positions(self, start: int, end: int, length: int) -> list[int]:
        """Return the positions in [start, end) after which a sequence keeps its states.

        Args:
            start: the first position.
            end: after the last one.
            length: of the sequence.
        """
        every = np.arange(start + -(start + 1) % MIN_UNIT, end, MIN_UNIT)
        return [int(each) for each in every[self.has(every, length)]]

    def checkpoints(self, start: int, end: int, prompt_end: int) -> list[int]:
        """Return after which tokens of a batch, in [start, end), the states are kept.

        States are also kept at the end of a prompt and before its last token, where the same
        prompt can resume when it comes again. Those of an answer are at regular distances: its
        length is not known yet.

        Args:
            start: the first position.
            end: after the last one.
            prompt_end: the length of the prompt; 0: the tokens are of an answer.
        """
        if not prompt_end:
            return [each for each in range(start, end) if not (each + 1) % ANSWER_UNIT]
        ends = [end - 2, end - 1] if end == prompt_end else []
        return self.positions(start, end, prompt_end) + ends

    def has(self, positions: npt.NDArray[np.int_], length: int) -> npt.NDArray[np.bool_]:
        """Return which positions of a sequence of this length are on the grid."""
        steps = _densest(self.states, 1 << max(length - 1, 1).bit_length())
        return _is_on(steps, positions + 1, length)


@functools.lru_cache
def _densest(states: int, length: int) -> _Steps:
    """Return the densest steps with at most so many checkpoints in a sequence of this length."""
    after = np.arange(MIN_UNIT, length + 1, MIN_UNIT)
    return next(
        steps
        for steps in _from_dense_to_sparse(length)
        if np.count_nonzero(_is_on(steps, after, length)) <= states
    )


def _is_on(steps: _Steps, after: npt.NDArray[np.int_], length: int) -> npt.NDArray[np.bool_]:
    """Return after which numbers of tokens a sequence of this length has a checkpoint."""
    before_end = length - after
    is_on: npt.NDArray[np.bool_] = after % steps.at(before_end) == 0
    return is_on & (before_end < steps.reach)


def _from_dense_to_sparse(length: int) -> Iterator[_Steps]:
    """Yield steps, each as many as the one before or fewer at any distance from the end."""
    span = length
    while span > MIN_UNIT:
        yield _Steps(MIN_UNIT, span, length)
        span //= 2
    unit = MIN_UNIT
    while unit <= _MAX_UNIT:
        yield _Steps(unit, unit, length)
        unit *= 2
    reach = length
    while reach:
        reach //= 2
        yield _Steps(_MAX_UNIT, _MAX_UNIT, reach)
