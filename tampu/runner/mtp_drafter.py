"""Drafts by the model's own layer of multi-token prediction, which shares the model's cache.

The model's steps write the layer's keys and values of all tokens, and keep the last hidden state of
each sequence. From a sequence's last known token, which is not computed yet, the layer guesses the
one after it, from this one the next, and so on, all sequences together:

    known     a b c       rows of a and b, and the state after b, are in the cache
    step 1    c  -> d1    takes a cell for c
    step 2    d1 -> d2    and one for d1

What it has written is taken back: the model's next step writes the rows of these tokens again.

Most of the time goes to the head, a row for each token of the vocabulary. The tokens of byte-level
BPE are ordered by how early they were merged, so the first ones are the most frequent, and where a
text consists of these, others are not guessed (compare arXiv:2502.14856, which counts frequencies).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

import numpy as np

from tampu.kvcache import KVCacheManager, Segment
from tampu.runner.draft_steps import Graphs, compute_best
from tampu.runner.drafters import MAX_GUESS, GuessKind
from tampu.runner.sequence import Sequence
from tampu.runner.step_inputs import StepInputs
from tampu.runner.step_times import StepTimes

_FIRST = 65_536
_LOOKED_AT = 64  # the last tokens of each text
_RARE = 1 / 16  # of these, how many may be others


def first_tokens(vocabulary: int) -> int:
    """Return among how many of the first tokens of a vocabulary guesses usually are."""
    return _FIRST if vocabulary >= 2 * _FIRST else vocabulary


def needed_tokens(vocabulary: int, asked: Iterable[Sequence]) -> int:
    """Return how many of the first tokens of a vocabulary the texts of sequences consist of."""
    first = first_tokens(vocabulary)
    if first == vocabulary:
        return first
    last = [each.tokens[max(each.length - _LOOKED_AT, 0) : each.length] for each in asked]
    is_rare = np.concatenate(last) >= first
    return vocabulary if is_rare.mean() > _RARE else first


class MTPDrafter:
    """Guesses the next tokens of answers. The run loop's thread alone calls it.

    Attributes:
        times: of its steps, by their rows.
        cost: the time of a token relative to one of the model, until times are known.
    """

    kind: ClassVar[GuessKind] = GuessKind.MTP
    takes_cells: ClassVar[bool] = True

    def __init__(
        self,
        graphs: Graphs,
        kv_manager: KVCacheManager,
        *,
        vocabulary: int,
        cost: float,
        positions_per_token: int = 1,
        candidates: int = 0,
    ) -> None:
        """Guess with the model's own cache.

        Args:
            graphs: compute its steps.
            kv_manager: gives cells of the model's cache.
            vocabulary: the number of tokens.
            cost: as the attribute.
            positions_per_token: the number of coordinates of a position.
            candidates: 1 if the device finds the best token, 0 if all logits are needed.
        """
        self.times = StepTimes()
        self.cost = cost
        self._graphs = graphs
        self._kv_manager = kv_manager
        self._vocabulary = vocabulary
        self._positions_per_token = positions_per_token
        self._candidates = candidates

    def room(self, sequence: Sequence) -> int:
        """Return how many tokens after a sequence's last one it can guess."""
        return max(min(sequence.capacity - sequence.length, MAX_GUESS), 0)

    def guess(self, wanted: Mapping[Sequence, int]) -> dict[Sequence, list[int]]:
        """Return the tokens that may come next, in order.

        Args:
            wanted: how many tokens for each sequence, at most `room`. No sequence has cells after
                those of its computed tokens, which are all but the last known one.

        Raises:
            TampuError: if a device fails.
        """
        taken: dict[Sequence, int] = {}
        try:
            for sequence, count in wanted.items():
                start, known = sequence.computed, sequence.keys[: sequence.length]
                if start == sequence.length - 1 and self._kv_manager.append(
                    sequence.cell_table, count, known, drafts=count - 1
                ):
                    taken[sequence] = start
            return self._guess({sequence: wanted[sequence] for sequence in taken})
        finally:
            for sequence, start in taken.items():
                self._kv_manager.rollback(sequence.cell_table, start)

    def ended(self, sequence: Sequence) -> None:
        """Do nothing: it keeps nothing of a sequence."""

    # -- inside ----------------------------------------------------------------------------------

    def _guess(self, wanted: Mapping[Sequence, int]) -> dict[Sequence, list[int]]:
        """Return the guesses of sequences that have cells for them."""
        found: dict[Sequence, list[int]] = {sequence: [] for sequence in wanted}
        vocabulary = needed_tokens(self._vocabulary, wanted)
        for number in range(max(wanted.values(), default=0)):
            asked = [sequence for sequence, count in wanted.items() if count > number]
            last = [
                found[each][-1] if number else int(each.tokens[each.length - 1]) for each in asked
            ]
            places = [sequence.length - 1 + number for sequence in asked]
            tokens = self._compute(asked, places, last, vocabulary)
            for sequence, token in zip(asked, tokens, strict=True):
                found[sequence].append(token)
        return found

    def _compute(
        self, asked: list[Sequence], places: list[int], tokens: list[int], vocabulary: int
    ) -> list[int]:
        """Compute one token of each sequence, at these positions; return the best ones after."""
        positions = [
            sequence.layout.positions(at, at + 1, self._positions_per_token)
            for sequence, at in zip(asked, places, strict=True)
        ]
        inputs = StepInputs(
            np.array(tokens, np.int32),
            np.ascontiguousarray(np.concatenate(positions, axis=-1)),
            np.arange(len(asked), dtype=np.int32),
            [
                Segment(sequence.cell_table.cells[:, : at + 1].copy(), at)
                for sequence, at in zip(asked, places, strict=True)
            ],
            candidates=self._candidates,
            drafts_from=vocabulary,
        )
        return compute_best(self._graphs, inputs, self.times)
