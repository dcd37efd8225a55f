"""Answers with drafts, right and wrong ones, have the same tokens as without: on every cache."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Any

import pytest
from support.checkpoints import DECODERS, HYBRIDS, RECIPES
from support.drafting import OPTIONS, Cheap, Free, answers, sequence_of
from support.laboratory import Laboratory, in_depth, tokens

from tampu.engine.engine import Engine
from tampu.kvcache import AttentionGroup, Cells, KVCacheManager
from tampu.runner.batch import Plan
from tampu.runner.draft_model import DraftModel
from tampu.runner.drafts import Drafts
from tampu.runner.sequence import Sequence
from tampu.runner.speculation import Speculation

pytestmark = pytest.mark.parity

# One of each kind of cache: of attention, also in windows and with sinks, and recurrent states.
QUICK = ("llama_rope_llama3", "gemma3_text", "gptoss", "lfm2", "qwen35")
EACH = pytest.mark.parametrize("name", in_depth(DECODERS, QUICK))
LENGTHS = (17, 90, 48)
MOST = 5


class KnownAnswers:
    """Guesses the tokens of known answers; a fifth of the guesses is wrong."""

    def __init__(self, answers: list[list[int]]) -> None:
        self._answers = answers  # each with its prompt
        self._source = random.Random(5)

    def choose(self, rooms: Mapping[Sequence, int], limit: int) -> Drafts:
        """Return guesses for some of the sequences."""
        found: Drafts = {}
        for sequence, room in rooms.items():
            count = min(room, limit, self._source.randrange(MOST + 1))
            if count > 0:
                found[sequence] = self._guess(sequence, count)
                limit -= len(found[sequence])
        return {sequence: guess for sequence, guess in found.items() if guess}

    def needs_cells(self, rooms: Mapping[Sequence, int], limit: int) -> bool:  # noqa: ARG002
        """Return False: it takes none."""
        return False

    def are_expected(self, sequences: Iterable[Sequence]) -> bool:
        """Return True: there always are some."""
        return bool([*sequences])

    def measured(self, plan: Plan, seconds: float, *, is_new: bool) -> None:
        """Do nothing."""

    def ended(self, sequence: Sequence) -> None:
        """Do nothing."""

    def _guess(self, sequence: Sequence, count: int) -> tuple[int, ...]:
        known = sequence.tokens[: sequence.length].tolist()
        [text] = [each for each in self._answers if each[: len(known)] == known]
        guess = text[len(known) : len(known) + count]
        return tuple(each if self._source.random() < 0.8 else 300 for each in guess)


@pytest.mark.seed("S78", "S80")
@EACH
def test_greedy_answers_in_one_batch(laboratory: Laboratory, name: str) -> None:
    prompts = [tokens(length, seed) for seed, length in enumerate(LENGTHS)]
    with laboratory.engine(name, slots=len(prompts)) as engine:
        scheduler = engine.model.scheduler
        scheduler.drafts.source = None
        answers(engine, prompts, temperature=0.0)  # the next ones take the same from the cache
        wanted = answers(engine, prompts, temperature=0.0)
        texts = [[*prompt, *each.tokens] for prompt, each in zip(prompts, wanted, strict=True)]
        scheduler.drafts.source = KnownAnswers(texts)
        found = answers(engine, prompts, temperature=0.0)
        engine.runner.call(scheduler.check)
    assert [each.tokens for each in found] == [each.tokens for each in wanted]
    drafted = sum(each.usage.drafted_tokens for each in found)
    accepted = sum(each.usage.accepted_tokens for each in found)
    assert 0 < accepted < drafted


# Of each kind of recurrent layer one; Mamba 1 has states after drafts, the others replay inputs.
RECURRENT = ("qwen35", "lfm2", "nemotron_h", "kimi_linear", "jamba")


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("name", in_depth(RECURRENT, ("qwen35",)))
def test_log_probabilities_after_drafts_of_recurrent_layers(
    laboratory: Laboratory, name: str, *, deterministic: bool
) -> None:
    """Those of a deterministic engine are the same to the last bit."""
    prompts = [tokens(length, seed) for seed, length in enumerate(LENGTHS)]
    with Engine.load(
        laboratory.file(name, "F32"),
        context=256,
        slots=3,
        threads=1,
        cache_type="f32",
        deterministic=deterministic,
    ) as engine:
        scheduler = engine.model.scheduler
        scheduler.drafts.source = None
        options: dict[str, Any] = {"temperature": 0.0, "logprobs": True}
        answers(engine, prompts, **options)
        wanted = answers(engine, prompts, **options)
        texts = [[*prompt, *each.tokens] for prompt, each in zip(prompts, wanted, strict=True)]
        scheduler.drafts.source = KnownAnswers(texts)
        engine.detect_nan()
        found = answers(engine, prompts, **options)
        engine.runner.call(scheduler.check)
        assert scheduler.kv_manager.max_drafts == (6 if name == "jamba" else 16)
    assert sum(each.usage.accepted_tokens for each in found) > 20
    for ours, theirs in zip(found, wanted, strict=True):
        pairs = zip(ours.logprobs, theirs.logprobs, strict=True)
        largest = max(abs(one.logprob - other.logprob) for one, other in pairs)
        assert largest <= (0.0 if deterministic else 1e-4)


@pytest.mark.parametrize("name", HYBRIDS[:2])
def test_without_kernels_drafts_have_states(laboratory: Laboratory, name: str) -> None:
    prompt = tokens(60, 3)
    with laboratory.engine(name, kernels="off") as engine:
        scheduler = engine.model.scheduler
        assert scheduler.kv_manager.max_drafts == 4
        scheduler.drafts.source = None
        [wanted] = answers(engine, [prompt], temperature=0.0)
        scheduler.drafts.source = KnownAnswers([[*prompt, *wanted.tokens]])
        [found] = answers(engine, [prompt], temperature=0.0)
    assert found.tokens == wanted.tokens
    assert 0 < found.usage.accepted_tokens < found.usage.drafted_tokens


@EACH
def test_greedy_answers_with_a_draft_model(laboratory: Laboratory, name: str) -> None:
    """The draft model has the same weights in fewer bits, so most of its guesses are right.

    One request is cancelled, and the context of another one is shifted.
    """
    draft = laboratory.file(name, "Q8_0")
    with laboratory.engine(name, slots=4, draft=str(draft)) as engine:
        lengths = 17, 90, engine.context - 6, 48
        prompts = [tokens(length, seed) for seed, length in enumerate(lengths)]
        scheduler = engine.model.scheduler
        speculation = scheduler.drafts.source
        assert isinstance(speculation, Speculation)
        assert speculation.model is not None
        speculation.times, speculation.model.times = Cheap(), Free()
        for rows in range(1, 40):  # all are known, however few steps are timed
            speculation.times.add(rows, 1.0)
            speculation.model.times.add(rows, 1.0)
        scheduler.drafts.source = None
        answers(engine, prompts, temperature=0.0)  # the next ones take the same from the cache
        wanted = answers(engine, prompts, temperature=0.0)
        scheduler.drafts.source = speculation
        engine.runner.call(scheduler.kv_manager.prefixes.tree.clear)  # it would be guessed by text
        with closing(engine.stream(tokens(30, 9), temperature=0.0, ignore_eos=True)) as cancelled:
            next(cancelled)
            found = answers(engine, prompts, temperature=0.0)
        engine.runner.call(scheduler.check)
    assert [each.tokens for each in found] == [each.tokens for each in wanted]
    assert sum(each.usage.accepted_tokens for each in found) > 0


def guesses_of(engine: Engine, max_following: int) -> tuple[list[list[list[int]]], list[int]]:
    """Return what a draft model guesses after three texts, three times, and by how many graphs."""
    own, graphs = engine.model.scheduler.kv_manager, engine.model.graphs
    model = DraftModel(
        graphs,
        own,
        context=64,
        batch=64,
        vocabulary=10**6,
        cost=0.1,
        positions_per_token=graphs.positions_per_token,
        max_following=max_following,
    )
    manager = KVCacheManager([AttentionGroup(Cells(256))])
    sequences = [sequence_of(manager, tokens(length, length)) for length in (17, 25, 9)]
    found, used = [], []
    for counts in ([0, 3, 0], [2, 5, 4], [2, 5, 4]):  # the first ones read the texts
        wanted = {each: n for each, n in zip(sequences, counts, strict=True) if n}
        before = graphs.counts.built + graphs.counts.reused
        guesses = model.guess(wanted)
        used.append(graphs.counts.built + graphs.counts.reused - before)
        assert {each: len(guess) for each, guess in guesses.items()} == wanted
        found.append([guesses[each] for each in wanted])
    for sequence in sequences:
        model.ended(sequence)
    own.reset()
    return found, used


@pytest.mark.parametrize("name", [*QUICK, "granitehybrid", "jamba"])
def test_guesses_of_one_graph_are_those_of_a_graph_each(laboratory: Laboratory, name: str) -> None:
    with laboratory.engine(name, slots=4) as engine:
        most = engine.model.graphs.max_following
        found, used = engine.runner.call(lambda: guesses_of(engine, most))
        wanted, alone = engine.runner.call(lambda: guesses_of(engine, 0))
    assert most > 1
    assert found == wanted
    assert alone == [3, 5, 5]
    assert (used[0], used[1] < 5, used[2] < 3) == (2, True, True)  # as many as fit into one


@pytest.mark.parametrize("options", OPTIONS.values(), ids=[*OPTIONS])
@pytest.mark.parametrize("name", ["llama_rope_llama3", "gemma3_text", HYBRIDS[0]])
def test_sampled_answers_with_a_seed(
    laboratory: Laboratory, name: str, options: dict[str, object]
) -> None:
    prompt = tokens(60, 3)
    with laboratory.engine(name) as engine:
        scheduler = engine.model.scheduler
        scheduler.drafts.source = None
        answers(engine, [prompt], seed=7, **options)
        [wanted] = answers(engine, [prompt], seed=7, **options)
        scheduler.drafts.source = KnownAnswers([[*prompt, *wanted.tokens]])
        [found] = answers(engine, [prompt], seed=7, **options)
    assert found.tokens == wanted.tokens
    assert 0 < found.usage.accepted_tokens < found.usage.drafted_tokens
    pairs = zip(found.logprobs, wanted.logprobs, strict=True)
    differ = [abs(ours.logprob - theirs.logprob) for ours, theirs in pairs]
    assert max(differ, default=0.0) < (0.02 if RECIPES[name].approximate else 1e-4)
