"""A draft model: a smaller model of the same vocabulary, which guesses the next tokens of answers.

It has a cache of its own, with the same groups of cells and the same prefix tree as any model. Of
each answer it computes what it has not seen yet, and then a guess at a time, all answers together:

    text        p p p p a b c            known; the draft model has computed p p p p a
    batch 1     b c          -> d1       of each answer
    batch 2     d1           -> d2
    batch 3     d2           -> d3

If little is known that it has not computed, as here, batches can be one graph: the best token of
one batch is looked up for the next. That is worth it if a batch takes less time than its launch,
and if answers have the same few graphs: the more batches a graph has, the longer it takes to build.

After the target model has verified the guesses, the cells of wrong ones are taken back. Guesses are
the model's best tokens, so they are right as often as the target model samples these.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from tampu.kvcache import CellTable, KVCacheManager, Segment
from tampu.runner.draft_steps import Graphs, compute_best
from tampu.runner.drafters import MAX_GUESS, GuessKind
from tampu.runner.layout import TEXT
from tampu.runner.sequence import Sequence
from tampu.runner.step_inputs import NextTokens, StepInputs
from tampu.runner.step_times import StepTimes

_FEW = 4  # known tokens of each answer, at most, in a graph with guesses: others need other graphs
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
    """The next tokens of a text in a step: those in [start, end) of its cells.

    `guesses`: how many tokens after them are wanted; 0: more of the text is known.
    """

    text: _Text
    start: int
    end: int
    guesses: int

    def following(self, number: int) -> _Part:
        """Return the part with nothing but one of the guesses; the first one is number 1."""
        end = self.end + number
        return _Part(self.text, end - 1, end, self.guesses - number)


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
        ends: Collection[int] = (),
        max_following: int = 0,
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
            ends: tokens that end an answer: nothing is guessed after them.
            max_following: how many guesses may be computed in a graph after the first one.
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
        self._ends = frozenset(ends)
        self._max_following = max_following
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
            every = self._compute([*parts.values()])
            for (sequence, part), tokens in zip([*parts.items()], every, strict=True):
                del parts[sequence]
                if not part.guesses:
                    continue
                part.text.tokens[part.end : part.end + len(tokens)] = tokens
                known, may_go_on = self._until_end(tokens)
                if known:
                    found.setdefault(sequence, []).extend(known)
                if may_go_on and len(tokens) < part.guesses:
                    parts[sequence] = part.following(len(tokens))
        return found

    def ended(self, sequence: Sequence) -> None:
        """Free a sequence's cells; what they hold stays cached."""
        text = self._texts.pop(sequence, None)
        if text is not None:
            self._kv_manager.free(text.table, text.tokens[: text.table.length])

    # -- inside ----------------------------------------------------------------------------------

    def _until_end(self, tokens: list[int]) -> tuple[list[int], bool]:
        """Return guesses up to one that ends an answer, or is unknown to the target model.

        Also returns whether others may follow.
        """
        for number, token in enumerate(tokens):
            if token >= self._vocabulary:
                return tokens[:number], False
            if token in self._ends:
                return tokens[: number + 1], False
        return tokens, True

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
        return _Part(text, start, end, wanted[sequence] if is_whole else 0)

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

    def _compute(self, parts: list[_Part]) -> list[list[int]]:
        """Compute a step; return the best token after each part, and as many more as it has."""
        places = sorted(range(len(parts)), key=lambda place: -parts[place].guesses)
        ordered = [parts[place] for place in places]
        counts = np.array([part.end - part.start for part in ordered])
        more = 0
        if counts.sum() <= _FEW * len(parts):
            more = min(max(ordered[0].guesses - 1, 0), self._max_following)
        later = [
            [part.following(number) for part in ordered if part.guesses > number]
            for number in range(1, more + 1)
        ]
        inputs = StepInputs(
            np.concatenate([part.text.tokens[part.start : part.end] for part in ordered]),
            self._positions(ordered),
            (np.cumsum(counts) - 1).astype(np.int32),
            _segments(ordered),
            candidates=self._candidates,
            following=tuple(NextTokens(self._positions(each), _segments(each)) for each in later),
        )
        best = iter(compute_best(self._graphs, inputs, self.times))
        found: list[list[int]] = [[] for _ in parts]
        for count in (len(each) for each in (ordered, *later)):
            for place, token in zip(places[:count], best, strict=False):
                found[place].append(token)
        return found

    def _positions(self, parts: list[_Part]) -> npt.NDArray[np.int32]:
        """Return the positions of the tokens of parts."""
        each = [TEXT.positions(part.start, part.end, self._positions_per_token) for part in parts]
        return np.ascontiguousarray(np.concatenate(each, axis=-1))


def _segments(parts: list[_Part]) -> list[Segment]:
    return [Segment(part.text.table.cells[:, : part.end].copy(), part.start) for part in parts]
