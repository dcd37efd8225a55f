"""Sampled answers have the distribution of the logits, whatever guesses the next tokens.

The text is a Markov chain: the logits follow from the last token alone. Each token that comes after
a pair of tokens is counted and compared with its probability by Pearson's chi-square test: a draft
that is accepted too often, or a token after a wrong draft that is chosen otherwise, changes counts.

With `--samples 1000000 --timeout 3600 --log-level info -rP` each slow test takes some minutes, and
prints what it found.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.fake_graphs import VOCABULARY, FakeEngine, FakeGraphs, FakeRequest, hashed

from tampu.kvcache import AttentionGroup, Cells, KVCacheManager
from tampu.ml.backend import Computed
from tampu.runner.batch import Plan
from tampu.runner.draft_model import DraftModel
from tampu.runner.drafters import Drafter, GrammarDrafter, NgramDrafter, PrefixDrafter
from tampu.runner.drafts import Drafts
from tampu.runner.graph_cache import GraphCounts
from tampu.runner.mtp_drafter import MTPDrafter
from tampu.runner.sequence import Sequence
from tampu.runner.speculation import GuessingModel
from tampu.runner.step_inputs import StepInputs

log = logging.getLogger(__name__)

FIRST, WORDS = 2, 6  # tokens 2 to 7
SLOTS, LENGTH, CONTEXT = 8, 240, 256
DRAFTS = 3
TEMPERATURE, TOP_K = 0.8, 5
LOGITS = np.full((WORDS, VOCABULARY), -np.inf, np.float32)
LOGITS[:, FIRST : FIRST + WORDS] = np.random.default_rng(3).normal(size=(WORDS, WORDS))
MOST_DEVIATIONS = 4.5  # of the statistic from its mean: one time in 300,000


class Chain(FakeGraphs):
    """Graphs of the Markov chain."""

    def _logits(self, history: list[int]) -> npt.NDArray[np.float32]:
        row: npt.NDArray[np.float32] = LOGITS[history[-1] - FIRST]
        return row


@dataclass
class EveryThird:
    """After two tokens from one half of the words comes the first word, which is forced.

    Attributes:
        count: of the tokens so far.
    """

    count: int = 0
    is_complete: bool = False

    def begin(self) -> None:
        """Do nothing: masks are there."""

    def mask(self) -> npt.NDArray[np.uint32]:
        bits = np.zeros(-(-VOCABULARY // 32), np.uint32)
        bits[0] = sum(1 << token for token in allowed(self.count))
        return bits

    def accept(self, token: int) -> None:
        assert token in allowed(self.count)
        self.count += 1

    def forced_tokens(self) -> list[int]:
        return [FIRST] if self.count % 3 == 2 else []


def allowed(count: int) -> range:
    """Return the tokens that the grammar allows after so many."""
    return range(FIRST, FIRST + 1) if count % 3 == 2 else range(FIRST + 1, FIRST + 5)


def probabilities(last: int, tokens: range) -> npt.NDArray[np.float64]:
    """Return the probability of each word after a token, by temperature and top_k."""
    logits = np.full(WORDS, -np.inf)
    places = np.array(tokens) - FIRST
    logits[places] = LOGITS[last - FIRST, np.array(tokens)] / TEMPERATURE
    logits[np.argsort(logits)[:-TOP_K]] = -np.inf
    shares: npt.NDArray[np.float64] = np.exp(logits - logits.max())
    shares /= shares.sum()
    return shares


@dataclass
class Guessing:
    """Asks one kind of drafter for the next tokens of every answer."""

    make: Callable[[Sequence], Drafter]
    drafters: dict[Sequence, tuple[Drafter, int]] = field(default_factory=dict)

    def choose(self, rooms: Mapping[Sequence, int], limit: int) -> Drafts:
        """Return what the drafter guesses."""
        found: Drafts = {}
        for sequence, room in rooms.items():
            if sequence not in self.drafters:
                self.drafters[sequence] = self.make(sequence), sequence.generated
            drafter, fed = self.drafters[sequence]
            new = sequence.generated - fed
            drafter.feed(sequence.tokens[sequence.length - new : sequence.length].tolist())
            self.drafters[sequence] = drafter, sequence.generated
            count = min(room, limit, DRAFTS)
            if tokens := tuple(drafter.guess(count).tokens)[: max(count, 0)]:
                found[sequence] = tokens
                limit -= len(tokens)
        return found

    def needs_cells(self, rooms: Mapping[Sequence, int], limit: int) -> bool:  # noqa: ARG002
        """Return False: it takes none."""
        return False

    def are_expected(self, sequences: Iterable[Sequence]) -> bool:
        """Return True: there always are some."""
        return bool([*sequences])

    def measured(self, plan: Plan, seconds: float, *, is_new: bool) -> None:
        """Do nothing."""

    def ended(self, sequence: Sequence) -> None:
        """Forget its drafter."""
        self.drafters.pop(sequence, None)


class Predictor:
    """Computes the steps of a layer of multi-token prediction, whose logits are the chain's."""

    def __init__(self) -> None:
        self.counts = GraphCounts()

    def submit(self, step: StepInputs) -> Future[Computed]:
        result: Future[Computed] = Future()
        result.set_result(Computed([LOGITS[step.tokens - FIRST, : step.drafts_from]], 0, 0))
        return result


class Asking(Guessing):
    """Asks a model that guesses, whose favourite words are those of the chain."""

    def __init__(self, model: GuessingModel) -> None:
        super().__init__(lambda _: pytest.fail("it has no drafters"))
        self._model = model

    def needs_cells(self, rooms: Mapping[Sequence, int], limit: int) -> bool:  # noqa: ARG002
        """Return whether the model takes cells of the target's cache."""
        return self._model.takes_cells

    def choose(self, rooms: Mapping[Sequence, int], limit: int) -> Drafts:
        """Return what the model guesses."""
        limit //= max(len(rooms), 1)
        counts = {each: min(room, limit, DRAFTS) for each, room in rooms.items()}
        guesses = self._model.guess({each: n for each, n in counts.items() if n > 0})
        return {each: tuple(tokens) for each, tokens in guesses.items()}

    def ended(self, sequence: Sequence) -> None:
        """Free its cells."""
        self._model.ended(sequence)


def draft_model(_: KVCacheManager) -> Asking:
    cells = SLOTS * CONTEXT
    manager = KVCacheManager([AttentionGroup(Cells(cells))])
    graphs: Any = Chain(hashed, cells)
    return Asking(
        DraftModel(graphs, manager, context=CONTEXT, batch=256, vocabulary=VOCABULARY, cost=0.1)
    )


def multi_token_prediction(manager: KVCacheManager) -> Asking:
    return Asking(MTPDrafter(Predictor(), manager, vocabulary=VOCABULARY, cost=0.1))


def by_ngrams(sequence: Sequence) -> Drafter:
    return NgramDrafter(sequence.tokens[: sequence.length])


def by_prediction(sequence: Sequence) -> Drafter:
    return NgramDrafter(sequence.tokens[: sequence.length], (FIRST + 1, FIRST + 2, FIRST) * 20)


def by_grammar(sequence: Sequence) -> Drafter:
    assert sequence.constraint is not None
    return GrammarDrafter(sequence.constraint)


def by_prefixes(manager: KVCacheManager) -> Guessing:
    tree = manager.prefixes.tree
    return Guessing(lambda sequence: PrefixDrafter(tree, sequence.keys[: sequence.length], 0))


SOURCES: dict[str, Callable[[KVCacheManager], Guessing]] = {
    "n-grams": lambda _: Guessing(by_ngrams),
    "prediction": lambda _: Guessing(by_prediction),
    "prefixes": by_prefixes,
    "grammar": lambda _: Guessing(by_grammar),
    "draft model": draft_model,
    "multi-token prediction": multi_token_prediction,
}
QUICK = [("n-grams", False, 10_000), ("draft model", True, 10_000)]
WHOLE = [
    pytest.param(name, has_grammar, None, marks=pytest.mark.slow)
    for name in SOURCES
    for has_grammar in (False, True)
    if has_grammar or name != "grammar"
]


def statistic(answers: list[list[int]], *, has_grammar: bool) -> float:
    """Return by how many standard deviations the chi-square statistic exceeds its mean."""
    counts: dict[tuple[int, int, int], npt.NDArray[np.int64]] = {}
    for answer in answers:
        for place in range(2, len(answer)):
            phase = place % 3 if has_grammar else 0
            key = phase, answer[place - 2], answer[place - 1]
            counts.setdefault(key, np.zeros(WORDS, np.int64))[answer[place] - FIRST] += 1
    total, freedom = 0.0, 0
    for (phase, _, last), found in counts.items():
        tokens = allowed(phase) if has_grammar else range(FIRST, FIRST + WORDS)
        shares = probabilities(last, tokens)
        assert not found[shares == 0].any()
        wanted = found.sum() * shares
        if wanted[shares > 0].min() >= 5 and (shares > 0).sum() > 1:
            total += float(((found - wanted)[shares > 0] ** 2 / wanted[shares > 0]).sum())
            freedom += int((shares > 0).sum()) - 1
    assert freedom > 20
    return float((total - freedom) / np.sqrt(2 * freedom))


@pytest.mark.parametrize(("name", "has_grammar", "samples"), [*QUICK, *WHOLE])
def test_tokens_are_as_frequent_as_they_are_probable(
    name: str,
    has_grammar: bool,
    samples: int | None,
    pytestconfig: pytest.Config,
) -> None:
    samples = samples or int(pytestconfig.getoption("--samples"))
    with FakeEngine(
        hashed, slots=SLOTS, context=CONTEXT, batch=64, graphs=Chain,
        max_drafts=SLOTS * DRAFTS,
    ) as engine:  # fmt: skip
        source = SOURCES[name](engine.kv_manager)
        engine.scheduler.drafts.source = source
        options: dict[str, Any] = {
            "temperature": TEMPERATURE, "top_k": TOP_K, "top_p": 1.0, "min_p": 0.0,
        }  # fmt: skip
        asked, answers = list[FakeRequest](), list[list[int]]()
        for first in range(0, samples // LENGTH, 4 * SLOTS):  # few wait at a time: that is fast
            group = [
                engine.ask(
                    [FIRST, FIRST + 3],
                    max_tokens=LENGTH,
                    seed=seed,
                    constraint=EveryThird() if has_grammar else None,
                    **options,
                )
                for seed in range(first, first + 4 * SLOTS)
            ]
            answers += [one.answer()[1] for one in group]
            asked += group
    drafted, accepted = (
        sum(getattr(one.sequence, each) for one in asked) for each in ("drafted", "accepted")
    )
    assert drafted > samples / 200
    assert accepted == drafted if name == "grammar" else 0 < accepted < drafted
    found = statistic(answers, has_grammar=has_grammar)
    log.info(
        "%s, %s: %d tokens, %d of %d drafts right, %+.2f standard deviations",
        name, "a grammar" if has_grammar else "no grammar", sum(map(len, answers)), accepted,
        drafted, found,
    )  # fmt: skip
    assert found < MOST_DEVIATIONS
