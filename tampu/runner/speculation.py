"""Speculation: which guesses of answers' next tokens are computed as drafts.

Each answer has drafters. Before each step one of them makes a guess, whether it is used or not;
once the tokens are known they show how often the guesses of each kind are right. From that, and
from the times of steps (`StepTimes`), follows how many drafts of which answers give the most tokens
a second: none for a text that cannot be guessed, and none where rows are what limits.

A draft model takes time for its guesses, so it is asked only where they are expected to win, for
as many tokens as win, and only for answers of which no other guess is as likely to be right.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, Protocol
from weakref import WeakKeyDictionary

from tampu.errors import DeviceLostError, TampuError
from tampu.kvcache.causal import FUSED_FROM
from tampu.kvcache.prefix_tree import PrefixTree
from tampu.runner.batch import BatchPart, Plan
from tampu.runner.draft_budget import DraftBudget
from tampu.runner.drafters import (
    MAX_GUESS,
    NOTHING,
    Drafter,
    GrammarDrafter,
    Guess,
    GuessKind,
    NgramDrafter,
    PrefixDrafter,
)
from tampu.runner.drafts import Drafts
from tampu.runner.sequence import Sequence
from tampu.runner.step_times import StepTimes

log = logging.getLogger("tampu.runner")

_MEMORY = 0.9  # of what is known of a kind, how much is left after each guess of an answer
_LONG_MEMORY = 0.98  # and of all answers
_WEIGHT = 2.0  # tokens: of what is known of other answers, or of none
_MOST = 0.99  # nothing is right more often
_MAX_DRAFTS = 48  # of a step
_NAMES = {
    GuessKind.ASSISTANT: "assistant",
    GuessKind.DRAFT_MODEL: "draft model",
    GuessKind.MTP: "layer of multi-token prediction",
}
_ASK_AGAIN = 256  # steps after which a draft model that was rarely right is asked again


class GuessingModel(Protocol):
    """Guesses the next tokens of several answers together.

    Attributes:
        kind: of its guesses.
        takes_cells: whether it takes cells of the target model for a while.
        times: of its steps, by their rows.
        cost: the time of a token relative to one of the target model, until times are known.
    """

    kind: ClassVar[GuessKind]
    takes_cells: ClassVar[bool]
    times: StepTimes
    cost: float

    def room(self, sequence: Sequence) -> int:
        """Return how many tokens after a sequence's last one it can guess."""

    def guess(self, wanted: Mapping[Sequence, int]) -> Mapping[Sequence, list[int]]:
        """Return at most so many tokens that may come next, for some of the sequences.

        Raises:
            TampuError: if a device fails.
        """

    def ended(self, sequence: Sequence) -> None:
        """Forget a sequence."""


class _Rate:
    """How often tokens of a kind of guess are right."""

    __slots__ = ("_memory", "_right", "_tried")

    def __init__(self, rate: float, memory: float) -> None:
        self._right, self._tried, self._memory = rate * _WEIGHT, _WEIGHT, memory

    def add(self, right: int, tried: int) -> None:
        """Note how many of the tried tokens of a guess were right."""
        self._right = self._right * self._memory + right
        self._tried = self._tried * self._memory + tried

    @property
    def value(self) -> float:
        """The rate, below 1."""
        return min(self._right / self._tried, _MOST)


class _Answer:
    """The drafters of one answer, and how often they are right.

    Attributes:
        guess: the last one.
        unasked: for how many steps no draft model was asked.
    """

    def __init__(self, sequence: Sequence, drafters: list[Drafter], unasked: int) -> None:
        self.guess = NOTHING
        self.unasked = unasked
        self._drafters = drafters
        self._generated = sequence.generated
        self._rates: dict[GuessKind, _Rate] = {}

    def next(self, sequence: Sequence, rates: Mapping[GuessKind, _Rate]) -> None:
        """Guess the tokens after those that are known."""
        if new := sequence.generated - self._generated:
            tokens = sequence.tokens[sequence.length - new : sequence.length].tolist()
            self._check(tokens, rates)
            for drafter in self._drafters:
                drafter.feed(tokens)
            self._generated = sequence.generated
        guesses = (drafter.guess(MAX_GUESS) for drafter in self._drafters)
        self.guess = next((each for each in guesses if each.tokens), NOTHING)

    def rate(self, kind: GuessKind, rates: Mapping[GuessKind, _Rate]) -> _Rate:
        """Return how often a kind of guess is right; of a new kind, as often as elsewhere."""
        if kind not in self._rates:
            self._rates[kind] = _Rate(rates[kind].value, _MEMORY)
        return self._rates[kind]

    def _check(self, tokens: list[int], rates: Mapping[GuessKind, _Rate]) -> None:
        """Compare the last guess with the tokens that came."""
        guessed, kind = self.guess
        tried = min(len(guessed), len(tokens))
        pairs = enumerate(zip(guessed, tokens, strict=False))
        right = next((number for number, (guess, token) in pairs if guess != token), tried)
        if tried:
            self.rate(kind, rates).add(right, min(right + 1, tried))
            rates[kind].add(right, min(right + 1, tried))


class Speculation:
    """Chooses the drafts of each step: a `DraftSource`.

    Attributes:
        times: of the steps, by their rows.
        model: guesses where nothing else does; None: there is none.
    """

    def __init__(
        self,
        tree: PrefixTree,
        times: StepTimes | None = None,
        model: GuessingModel | None = None,
    ) -> None:
        """Know no answers yet.

        Args:
            tree: has the texts of earlier requests.
            times: of the steps; None: none are known.
            model: guesses where nothing else does; None: there is none.
        """
        self._tree = tree
        self.times = times or StepTimes()
        self.model = model
        self._asking_s = 0.0  # the time of its last guesses, which is not that of a step
        self._budget = DraftBudget()
        self._unasked = 0
        self._rates = {kind: _Rate(kind.value, _LONG_MEMORY) for kind in GuessKind}
        self._answers: WeakKeyDictionary[Sequence, _Answer] = WeakKeyDictionary()

    def choose(self, rooms: Mapping[Sequence, int], limit: int) -> Drafts:
        """Return drafts for the next step; those that are not worth their time are left out."""
        limit = self._limit(len(rooms), limit)
        if not self._can_win(len(rooms), limit):
            return {}
        answers = self._next(rooms)
        if self.model is not None:
            self._ask(self.model, rooms, limit, answers)
        return self._best(rooms, limit, answers, unknown=0)

    def needs_cells(self, rooms: Mapping[Sequence, int], limit: int) -> bool:
        """Return whether a model that takes cells will be asked."""
        if self.model is None or not self.model.takes_cells:
            return False
        limit = self._limit(len(rooms), limit)
        if not self._can_win(len(rooms), limit):
            return False
        return bool(self._wanted(self.model, rooms, limit, self._next(rooms)))

    def are_expected(self, sequences: Iterable[Sequence]) -> bool:
        """Return whether there will be drafts once the next token of each sequence is known."""
        rooms = dict.fromkeys(sequences, MAX_GUESS)
        limit = self._limit(len(rooms), _MAX_DRAFTS)
        if not self._can_win(len(rooms), limit):
            return False
        answers = self._next(rooms)
        if self._best(rooms, limit, answers, unknown=1):
            return True
        return self.model is not None and bool(self._wanted(self.model, rooms, limit, answers))

    def measured(self, plan: Plan, seconds: float, *, is_new: bool) -> None:
        """Note how long a batch took, until the next one was launched; as `DraftSource`."""
        asking_s, self._asking_s = self._asking_s, 0.0
        if any(part.is_prefill for part in plan.parts):
            return
        rows = len(plan.inputs.tokens)
        own = rows - sum(len(part.drafts) for part in plan.parts)
        if not is_new:
            self.times.add(rows, seconds - asking_s)
        # By usual times: steps that other work made slow do not count as lost, nor do graphs.
        step_s = self.times.at(own)
        lost = min(asking_s, step_s)
        if plan.has_drafts:
            right = sum(_right(part) for part in plan.parts)
            lost += self.times.with_drafts(own, rows) - step_s * (1 + right / own)
        self._budget.add(seconds, lost, step_s)

    def ended(self, sequence: Sequence) -> None:
        """Forget a sequence, which has given up its slot."""
        if self.model is not None:
            self.model.ended(sequence)

    # -- inside ----------------------------------------------------------------------------------

    def _can_win(self, rows: int, limit: int) -> bool:
        """Return whether a step of so many rows may have drafts."""
        return not self._budget.is_spent and self.times.can_win(rows, limit)

    def _limit(self, rows: int, limit: int) -> int:
        """Return how many drafts a step may have beside so many rows."""
        limit = min(limit, _MAX_DRAFTS)
        # Attention is computed in another way from FUSED_FROM on.
        return min(limit, FUSED_FROM - 1 - rows) if rows < FUSED_FROM else limit

    def _next(self, rooms: Mapping[Sequence, int]) -> dict[Sequence, _Answer]:
        """Return the answers that may have drafts, each with a new guess that costs nothing."""
        answers = {sequence: self._answer(sequence) for sequence, room in rooms.items() if room > 0}
        for sequence, answer in answers.items():
            answer.next(sequence, self._rates)
        return answers

    def _best(
        self,
        rooms: Mapping[Sequence, int],
        limit: int,
        answers: Mapping[Sequence, _Answer],
        *,
        unknown: int,
    ) -> Drafts:
        """Return the drafts that win; the first `unknown` tokens of a guess have no rows."""
        found: list[tuple[Sequence, Guess]] = []
        worth: list[tuple[float, int]] = []
        for sequence, answer in answers.items():
            tokens, kind = answer.guess
            if (count := min(len(tokens) - unknown, rooms[sequence])) > 0:
                found.append((sequence, answer.guess))
                worth.append((answer.rate(kind, self._rates).value, count))
        if not found:
            return {}
        counts = self.times.best(len(rooms), limit, worth)
        return {
            sequence: tuple(guess.tokens[unknown : unknown + count])
            for (sequence, guess), count in zip(found, counts, strict=True)
            if count
        }

    # -- a draft model ---------------------------------------------------------------------------

    def _ask(
        self,
        model: GuessingModel,
        rooms: Mapping[Sequence, int],
        limit: int,
        answers: Mapping[Sequence, _Answer],
    ) -> None:
        """Replace guesses by those of a model, where these are expected to win."""
        wanted = self._wanted(model, rooms, limit, answers)
        for answer in answers.values():
            answer.unasked += 1
        self._unasked += 1
        if not wanted:
            return
        self._unasked = 0
        began = time.perf_counter()
        try:
            guesses = model.guess(wanted)
        except DeviceLostError:
            raise
        except TampuError as error:
            log.warning("the %s failed, and is not used any more: %s", _NAMES[model.kind], error)
            self.model = None
            return
        self._asking_s = time.perf_counter() - began
        for sequence in wanted:
            answers[sequence].unasked = 0
        for sequence, tokens in guesses.items():
            answers[sequence].guess = Guess(tokens, model.kind)

    def _wanted(
        self,
        model: GuessingModel,
        rooms: Mapping[Sequence, int],
        limit: int,
        answers: Mapping[Sequence, _Answer],
    ) -> dict[Sequence, int]:
        """Return of which sequences a model should guess how many tokens."""
        rates: dict[Sequence, float] = {}
        for sequence, answer in answers.items():
            rate = answer.rate(model.kind, self._rates).value
            if answer.unasked >= _ASK_AGAIN:
                rate = max(rate, model.kind.value)
            tokens, kind = answer.guess
            other = answer.rate(kind, self._rates).value if tokens else 0.0
            if rate > other and model.room(sequence) > 0:
                rates[sequence] = rate
        ordered = sorted(
            rates, key=lambda each: (round(rates[each], 1), answers[each].unasked), reverse=True
        )  # about as likely ones in turns, so that no answer is left behind
        count, depth = self.times.depth(
            len(rooms), limit, [rates[each] for each in ordered], self._asking(model)
        )
        return {
            each: min(depth, rooms[each], model.room(each)) for each in ordered[:count] if depth
        }

    def _asking(self, model: GuessingModel) -> Callable[[int], float]:
        """Return how long a model takes for a token of a number of answers."""
        if model.times.is_known and self.times.is_known:
            return model.times.at
        return lambda rows: model.cost * self.times.at(rows)

    def _answer(self, sequence: Sequence) -> _Answer:
        answer = self._answers.get(sequence)
        if answer is None:
            answer = self._answers[sequence] = _Answer(
                sequence, self._drafters(sequence), self._unasked
            )
        return answer

    def _drafters(self, sequence: Sequence) -> list[Drafter]:
        """Return the drafters of an answer; the first one that has a guess is asked."""
        drafters: list[Drafter] = []
        if sequence.constraint:
            drafters.append(GrammarDrafter(sequence.constraint))
        length = sequence.length
        if not sequence.cell_table.is_private:
            keys = sequence.keys[:length]
            drafters.append(PrefixDrafter(self._tree, keys, sequence.variant.key_offset))
        drafters.append(NgramDrafter(sequence.tokens[:length], sequence.predicted))
        return drafters


def _right(part: BatchPart) -> int:
    """Return how many drafts of a part that was computed were right."""
    sequence, first = part.sequence, part.start + 1
    known = sequence.tokens[first : min(first + len(part.drafts), sequence.length)].tolist()
    pairs = enumerate(zip(part.drafts, known, strict=False))
    return next((number for number, (draft, token) in pairs if draft != token), len(known))
