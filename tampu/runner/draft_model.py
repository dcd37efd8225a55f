"""A draft model: a smaller model of the same vocabulary, which guesses the next tokens of answers.

It has a cache of its own, with the same groups of cells and the same prefix tree as any model. Of
each answer it computes what it has not seen yet, and then a guess at a time, all answers together:

    text        p p p p a b c            known; the draft model has computed p p p p a
    batch 1     b c          -> d1       of each answer
    batch 2     d1           -> d2
    batch 3     d2           -> d3

After the target model has verified the guesses, the cells of wrong ones are taken back. Guesses are
the model's best tokens, so they are right as often as the target model samples these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from tampu.kvcache import CellTable, KVCacheManager, Segment
from tampu.runner.draft_steps import Graphs, compute_best
from tampu.runner.drafters import MAX_GUESS, GuessKind
from tampu.runner.layout import TEXT
from tampu.runner.sequence import Sequence
from tampu.runner.step_inputs import StepInputs
from tampu.runner.step_times import StepTimes

_CATCH_UP = 128  # tokens that are computed before a guess, of all answers, beside other answers


@dataclass(slots=True, eq=False)
class _Text:
    """What the draft model has computed of an answer and its prompt.

    Attributes:
        table: its cells.
        tokens: I32, (capacity,): the tokens of these cells.
        least: the length to which the cells can be taken back.
    """

    table: CellTable
    tokens: npt.NDArray[np.int32]
    least: int = 0


@dataclass(frozen=True, slots=True)
class _Part:
    """The next tokens of a text in a step: those in [start, end) of its cells."""

    text: _Text
    start: int
    end: int
    has_output: bool = True


class DraftModel:
    """Guesses the next tokens of answers. The run loop's thread alone calls it.

    Attributes:
        times: of its steps, by their rows.
        cost: the time of a token relative to one of the target model, until times are known.
    """

    kind: ClassVar[GuessKind] = GuessKind.DRAFT_MODEL
    takes_cells: ClassVar[bool] = False

    def __init__(
        self,
        graphs: Graphs,
        kv_manager: KVCacheManager,
        *,
        context: int,
        batch: int,
        vocabulary: int,
        cost: float,
        positions_per_token: int = 1,
        candidates: int = 0,
    ) -> None:
        """Know no texts yet.

        Args:
            graphs: compute its steps.
            kv_manager: gives cells of its cache.
            context: the maximum number of tokens of a text.
            batch: the maximum number of tokens of a step.
            vocabulary: of the target model; tokens beyond it are not guessed.
            cost: as the attribute.
            positions_per_token: the number of coordinates of a position.
            candidates: 1 if its device finds the best token, 0 if all logits are needed.
        """
        self.times = StepTimes()
        self.cost = cost
        self._graphs = graphs
        self._kv_manager = kv_manager
        self._context = context
        self._batch = batch
        self._vocabulary = vocabulary
        self._positions_per_token = positions_per_token
        self._candidates = candidates
        self._texts: dict[Sequence, _Text] = {}

    def room(self, sequence: Sequence) -> int:
        """Return how many tokens after a sequence's last one it can guess; 0 if it has images."""
        if sequence.layout.media:
            return 0
        return max(min(self._context - sequence.length, MAX_GUESS), 0)

    def guess(self, wanted: Mapping[Sequence, int]) -> dict[Sequence, list[int]]:
        """Return the tokens that may come next, in order.

        A long text of which little is computed gets no guess before it has caught up, which takes
        several calls, so that no call takes long.

        Args:
            wanted: how many tokens for each sequence, at most `room`.

        Raises:
            TampuError: if a device fails.
        """
        texts = {sequence: self._agreeing(sequence) for sequence in wanted}
        parts: dict[Sequence, _Part] = {}
        left = self._batch
        if len(wanted) > 1:
            left = min(max(_CATCH_UP, len(wanted)), self._batch)
        for sequence in sorted(wanted, key=lambda each: each.length - texts[each].table.length):
            part = self._next(sequence, texts[sequence], wanted, left)
            if part is not None:
                parts[sequence] = part
                left -= part.end - part.start
        found: dict[Sequence, list[int]] = {}
        while parts:
            tokens = self._compute([*parts.values()])
            for (sequence, part), token in zip([*parts.items()], tokens, strict=True):
                del parts[sequence]
                if not part.has_output or token >= self._vocabulary:
                    continue
                guessed = found.setdefault(sequence, [])
                guessed.append(token)
                if len(guessed) < wanted[sequence]:
                    part.text.tokens[part.end] = token
                    parts[sequence] = _Part(part.text, part.end, part.end + 1)
        return found

    def ended(self, sequence: Sequence) -> None:
        """Free a sequence's cells; what they hold stays cached."""
        text = self._texts.pop(sequence, None)
        if text is not None:
            self._kv_manager.free(text.table, text.tokens[: text.table.length])

    # -- inside ----------------------------------------------------------------------------------

    def _next(
        self, sequence: Sequence, text: _Text, wanted: Mapping[Sequence, int], limit: int
    ) -> _Part | None:
        """Give cells to a sequence's next known tokens, and to all guesses but the last.

        Returns:
            The known ones; None if there are no cells for them, or `limit` is 0.
        """
        start = text.table.length
        end = min(start + limit, sequence.length)
        if end == start:
            return None
        is_whole = end == sequence.length
        text.tokens[start:end] = sequence.tokens[start:end]
        guesses = wanted[sequence] - 1 if is_whole else 0
        if not self._append(sequence, text, end - start, guesses, wanted):
            return None
        text.least = end
        return _Part(text, start, end, has_output=is_whole)

    def _append(
        self,
        sequence: Sequence,
        text: _Text,
        known: int,
        guesses: int,
        wanted: Mapping[Sequence, int],
    ) -> bool:
        """Allocate cells; if there are too few, those of texts that need no guess now are freed."""
        keys = sequence.tokens[: sequence.length]
        is_prompt = text.table.length + known < len(keys)
        while not self._kv_manager.append(
            text.table, known + guesses, keys, is_prompt=is_prompt, drafts=guesses
        ):
            idle = next((each for each in self._texts if each not in wanted), None)
            if idle is None:
                return False
            self.ended(idle)
        return True

    def _agreeing(self, sequence: Sequence) -> _Text:
        """Return a sequence's text without what differs from its tokens, and without its last one.

        Its last known token is always computed, since its output is the first guess.
        """
        text = self._texts.get(sequence)
        known = sequence.tokens[: sequence.length - 1]
        if text is not None:
            limit = min(text.table.length, len(known))
            differing = np.flatnonzero(text.tokens[:limit] != known[:limit])
            agreed = int(differing[0]) if len(differing) else limit
            if agreed >= text.least:
                self._kv_manager.rollback(text.table, agreed)
                return text
            self.ended(sequence)  # its context was shifted, or it has had no token since
        table = self._kv_manager.allocate(self._context)
        cached = self._kv_manager.match_prefix(table, known)
        text = self._texts[sequence] = _Text(table, np.zeros(self._context, np.int32), cached)
        text.tokens[:cached] = known[:cached]
        return text

    def _compute(self, parts: list[_Part]) -> list[int]:
        """Compute a step; return the best token after each part."""
        counts = np.array([part.end - part.start for part in parts])
        positions = [
            TEXT.positions(part.start, part.end, self._positions_per_token) for part in parts
        ]
        cells = [part.text.table.cells[:, : part.end].copy() for part in parts]
        inputs = StepInputs(
            np.concatenate([part.text.tokens[part.start : part.end] for part in parts]),
            np.ascontiguousarray(np.concatenate(positions, axis=-1)),
            (np.cumsum(counts) - 1).astype(np.int32),
            [Segment(own, part.start) for own, part in zip(cells, parts, strict=True)],
            candidates=self._candidates,
        )
        return compute_best(self._graphs, inputs, self.times)
