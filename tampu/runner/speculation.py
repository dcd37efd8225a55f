"""Speculation: which guesses of answers' next tokens are computed as drafts.

Each answer has drafters. Before each step one of them makes a guess, whether it is used or not;
once the tokens are known they show how often the guesses of each kind are right. From that, and
from the times of steps (`StepTimes`), follows how many drafts of which answers give the most tokens
a second: none for a text that cannot be guessed, and none where rows are what limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from weakref import WeakKeyDictionary

from tampu.kvcache.causal import FUSED_FROM
from tampu.kvcache.prefix_tree import PrefixTree
from tampu.runner.batch import Plan
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

_MEMORY = 0.9  # of what is known of a kind, how much is left after each guess of an answer
_LONG_MEMORY = 0.98  # and of all answers
_WEIGHT = 2.0  # tokens: of what is known of other answers, or of none
_MOST = 0.99  # nothing is right more often
_MAX_DRAFTS = 48  # of a step


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
    """The drafters of one answer, and how often they are right."""

    def __init__(self, sequence: Sequence, drafters: list[Drafter]) -> None:
        self._drafters = drafters
        self._generated = sequence.generated
        self._guess = NOTHING
        self._rates: dict[GuessKind, _Rate] = {}

    def next(self, sequence: Sequence, rates: Mapping[GuessKind, _Rate]) -> tuple[Guess, float]:
        """Return a guess of the tokens after those that are known, and how often it is right."""
        if new := sequence.generated - self._generated:
            tokens = sequence.tokens[sequence.length - new : sequence.length].tolist()
            self._check(tokens, rates)
            for drafter in self._drafters:
                drafter.feed(tokens)
            self._generated = sequence.generated
        guesses = (drafter.guess(MAX_GUESS) for drafter in self._drafters)
        self._guess = next((each for each in guesses if each.tokens), NOTHING)
        return self._guess, self._rate(self._guess.kind, rates).value

    def _check(self, tokens: list[int], rates: Mapping[GuessKind, _Rate]) -> None:
        """Compare the last guess with the tokens that came."""
        guessed, kind = self._guess
        tried = min(len(guessed), len(tokens))
        pairs = enumerate(zip(guessed, tokens, strict=False))
        right = next((number for number, (guess, token) in pairs if guess != token), tried)
        if tried:
            self._rate(kind, rates).add(right, min(right + 1, tried))
            rates[kind].add(right, min(right + 1, tried))

    def _rate(self, kind: GuessKind, rates: Mapping[GuessKind, _Rate]) -> _Rate:
        if kind not in self._rates:
            self._rates[kind] = _Rate(rates[kind].value, _MEMORY)
        return self._rates[kind]


class Speculation:
    """Chooses the drafts of each step: a `DraftSource`."""

    def __init__(self, tree: PrefixTree, times: StepTimes | None = None) -> None:
        """Know no answers yet; `tree` has the texts of earlier requests."""
        self._tree = tree
        self._times = times or StepTimes()
        self._rates = {kind: _Rate(kind.value, _LONG_MEMORY) for kind in GuessKind}
        self._answers: WeakKeyDictionary[Sequence, _Answer] = WeakKeyDictionary()

    def choose(self, rooms: Mapping[Sequence, int], limit: int) -> Drafts:
        """Return drafts for the next step; those that are not worth their time are left out."""
        return self._choose(rooms, limit, unknown=0)

    def are_expected(self, sequences: Iterable[Sequence]) -> bool:
        """Return whether there will be drafts once the next token of each sequence is known."""
        rooms = dict.fromkeys(sequences, MAX_GUESS)
        return bool(self._choose(rooms, _MAX_DRAFTS, unknown=1))

    def measured(self, plan: Plan, seconds: float) -> None:
        """Note how long a batch took, until the next one was launched."""
        if not any(part.is_prefill for part in plan.parts):
            self._times.add(len(plan.inputs.tokens), seconds)

    def _choose(self, rooms: Mapping[Sequence, int], limit: int, *, unknown: int) -> Drafts:
        """Return drafts; the first `unknown` tokens of each guess have no rows of their own."""
        rows = len(rooms)
        limit = min(limit, _MAX_DRAFTS)
        if rows < FUSED_FROM:  # attention is computed in another way from there on
            limit = min(limit, FUSED_FROM - 1 - rows)
        if not self._times.can_win(rows, limit):
            return {}
        found: list[tuple[Sequence, Guess]] = []
        worth: list[tuple[float, int]] = []
        for sequence, room in rooms.items():
            if room > 0:
                guess, rate = self._answer(sequence).next(sequence, self._rates)
                if (count := min(len(guess.tokens) - unknown, room)) > 0:
                    found.append((sequence, guess))
                    worth.append((rate, count))
        if not found:
            return {}
        counts = self._times.best(rows, limit, worth)
        return {
            sequence: tuple(guess.tokens[unknown : unknown + count])
            for (sequence, guess), count in zip(found, counts, strict=True)
            if count
        }

    def _answer(self, sequence: Sequence) -> _Answer:
        answer = self._answers.get(sequence)
        if answer is None:
            answer = self._answers[sequence] = _Answer(sequence, self._drafters(sequence))
        return answer

    def _drafters(self, sequence: Sequence) -> list[Drafter]:
        """Return the drafters of an answer; the first one that has a guess is asked."""
        drafters: list[Drafter] = []
        if sequence.constraint:
            drafters.append(GrammarDrafter(sequence.constraint))
        length = sequence.length
        if not sequence.cell_table.is_private:
            keys = sequence.keys[:length]
            drafters.append(PrefixDrafter(self._tree, keys, sequence.lora.key_offset))
        drafters.append(NgramDrafter(sequence.tokens[:length], sequence.predicted))
        return drafters
