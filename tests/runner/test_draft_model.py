"""A draft model guesses tokens of all answers together, and changes nothing but the steps."""

import random
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from support.drafting import Cheap, Free, sequence_of
from support.fake_graphs import EOS, FakeEngine, FakeGraphs, FakeRequest, alone, hashed

from tampu.errors import ComputeError, DeviceLostError
from tampu.kvcache import AttentionGroup, Cells, KVCacheManager
from tampu.ml.backend import Computed
from tampu.runner.context_shift import shift_count
from tampu.runner.draft_model import DraftModel
from tampu.runner.speculation import Speculation
from tampu.runner.step_inputs import StepInputs

CONTEXT = 64


def mostly(history: list[int]) -> int:
    """Return the same token as `hashed` two times of three."""
    wrong = (sum(history) + len(history)) % 3 == 0
    return 2 + (hashed(history) - 1) % 20 if wrong else hashed(history)


class Drafting:
    """A draft model over fake graphs.

    Attributes:
        graphs: they compute it.
        manager: of its cells.
        model: it.
    """

    def __init__(
        self,
        follow: Callable[[list[int]], int] = mostly,
        cells: int = 4 * CONTEXT,
        graphs: type[FakeGraphs] = FakeGraphs,
        context: int = CONTEXT,
        max_following: int = 0,
    ) -> None:
        self.graphs: Any = graphs(follow, cells)
        self.manager = KVCacheManager([AttentionGroup(Cells(cells))])
        self.model = DraftModel(
            self.graphs,
            self.manager,
            context=context,
            batch=16,
            vocabulary=22,
            cost=0.1,
            ends={EOS},
            max_following=max_following,
        )
        self.model.times = Free()

    def begin(self, engine: FakeEngine) -> None:
        """Let it guess the tokens of an engine."""
        tree = engine.kv_manager.prefixes.tree
        engine.scheduler.drafts.source = Speculation(tree, Cheap(), self.model)

    def check(self) -> None:
        """Require that all cells are free."""
        self.manager.check([])
        cells = self.manager.groups[0].cells
        assert cells.available == len(cells)


def ask(
    drafting: Drafting, prompts: list[list[int]], **options: Any
) -> tuple[list[FakeRequest], int]:
    """Return finished requests, all asked for at once, and the number of steps."""
    size: dict[str, Any] = {"slots": len(prompts), "context": CONTEXT, "batch": 64}
    with FakeEngine(hashed, times=Cheap(), **size) as engine:
        drafting.begin(engine)
        asked = engine.runner.call(lambda: [engine.ask(prompt, **options) for prompt in prompts])
        for prompt, each in zip(prompts, asked, strict=True):
            assert each.answer()[1] == alone(prompt, options["max_tokens"])
        engine.wait_until_idle()
        steps = len(engine.graphs.steps)
    drafting.check()
    return asked, steps


def test_right_guesses_save_steps() -> None:
    drafting = Drafting(hashed)
    asked, steps = ask(drafting, [[2, 3, 4]], max_tokens=40)
    assert steps < 20
    usage = asked[0].sequence.usage()
    assert usage.accepted_tokens == usage.drafted_tokens > 25


def test_all_answers_are_guessed_in_the_same_batches() -> None:
    drafting = Drafting()
    asked, _ = ask(drafting, [[2, 3, n] for n in range(4, 8)], max_tokens=40)
    accepted = [each.sequence.accepted for each in asked]
    assert min(accepted) > 8
    assert max(len(step) for step in drafting.graphs.steps) >= len(asked)
    assert len(drafting.graphs.steps) < sum(each.sequence.drafted for each in asked)


def test_tokens_of_wrong_guesses_are_computed_again() -> None:
    drafting = Drafting()
    asked, _ = ask(drafting, [[2, 3, 4, 5]], max_tokens=50)
    sequence = asked[0].sequence
    assert 0 < sequence.accepted < sequence.drafted
    text = sequence.tokens[: sequence.length].tolist()
    for step in drafting.graphs.steps:
        first = step[0]
        assert first[1] == text[first[0]] or len(step) == 1


def test_a_prompt_is_read_in_parts_beside_others() -> None:
    source = random.Random(1)
    prompts = [[source.randrange(2, 20) for _ in range(length)] for length in (40, 3)]
    drafting = Drafting()
    asked, _ = ask(drafting, prompts, max_tokens=20)
    assert max(len(step) for step in drafting.graphs.steps) <= 16
    assert min(each.sequence.accepted for each in asked) > 0


def test_a_prompt_that_it_has_read_before_is_not_read_again() -> None:
    drafting, prompt = Drafting(), [2 + n % 19 for n in range(40)]
    ask(drafting, [prompt], max_tokens=12)
    before = len(drafting.graphs.steps)
    ask(drafting, [prompt], max_tokens=12)
    assert len(drafting.graphs.steps[before]) == 1


def test_answers_are_guessed_as_long_as_there_are_cells() -> None:
    drafting = Drafting(cells=40)
    ask(drafting, [[2, 3, n] for n in range(4, 8)], max_tokens=40)


def test_texts_beyond_its_context_are_not_guessed() -> None:
    drafting = Drafting(hashed, context=16)
    asked, steps = ask(drafting, [[2, 3, 4]], max_tokens=50)
    assert asked[0].sequence.accepted < 16
    assert steps > 30


@pytest.mark.parametrize("follow", [lambda history: 2 + (hashed(history) - 1) % 20, lambda _: EOS])
def test_a_model_that_is_never_right_is_seldom_asked(follow: Callable[[list[int]], int]) -> None:
    drafting = Drafting(follow)
    asked, _ = ask(drafting, [[2, 3, 4]], max_tokens=60)
    assert asked[0].sequence.accepted == 0
    assert len(drafting.graphs.steps) < 30


class Counting(FakeGraphs):
    """Notes graphs.

    `graphs`: the tokens of each, and of those that follow in it.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.graphs: list[list[int]] = []

    def submit(self, step: StepInputs) -> Future[Computed]:
        self.graphs.append([len(step.tokens), *(len(each.segments) for each in step.following)])
        return super().submit(step)


def guessed(max_following: int) -> tuple[list[list[int]], list[list[list[int]]]]:
    """Return what three answers are guessed, twice, and the graphs of each time."""
    drafting = Drafting(cells=8 * CONTEXT, graphs=Counting, max_following=max_following)
    manager = KVCacheManager([AttentionGroup(Cells(4 * CONTEXT))])
    texts = [2, 3, 4], [5, 6], [2 + n % 19 for n in range(11)]
    sequences = [sequence_of(manager, text) for text in texts]
    found, graphs = list[list[int]](), []
    for _ in range(2):
        guesses = drafting.model.guess(dict(zip(sequences, [2, 5, 4], strict=True)))
        found += [guesses[each] for each in sequences]
        graphs.append(drafting.graphs.graphs)
        drafting.graphs.graphs = []
    for sequence in sequences:
        drafting.model.ended(sequence)
    drafting.check()
    return found, graphs


@pytest.mark.parametrize(
    ("max_following", "first", "second"),
    [
        (0, [[16], [3], [2], [2], [1]], [[3], [3], [2], [2], [1]]),
        (1, [[16], [3, 2], [2, 1]], [[3, 3], [2, 2], [1]]),
        (9, [[16], [3, 2, 2, 1]], [[3, 3, 2, 2, 1]]),
    ],
)
def test_guesses_of_one_graph_are_those_of_a_graph_each(
    max_following: int, first: list[list[int]], second: list[list[int]]
) -> None:
    """A graph with many tokens that were known has no guesses: others seldom have as many."""
    found, graphs = guessed(max_following)
    assert graphs == [first, second]
    assert found == guessed(0)[0]
    assert [len(each) for each in found] == [2, 5, 4] * 2
    assert found[:3] == found[3:]


@pytest.mark.parametrize("max_following", [0, 1, 9])
@pytest.mark.parametrize(
    ("tokens", "wanted"), [([7, 40, 8], [8, 7]), ([7, EOS, 8], [8, 7, EOS]), ([7, 8, EOS], [EOS])]
)
def test_nothing_is_guessed_after_an_end_or_what_is_no_token_of_the_model(
    tokens: list[int], wanted: list[int], max_following: int
) -> None:
    drafting = Drafting(lambda history: tokens[len(history) % 3], max_following=max_following)
    manager = KVCacheManager([AttentionGroup(Cells(CONTEXT))])
    sequence = sequence_of(manager, [2, 3, 4, 5, 6])
    assert drafting.model.guess({sequence: 6}) == {sequence: wanted}
    drafting.model.ended(sequence)
    drafting.check()


class Failing(FakeGraphs):
    """Fails from the fourth step on."""

    error: type[ComputeError] = ComputeError

    def submit(self, step: StepInputs) -> Future[Computed]:
        result = super().submit(step)
        if len(self.steps) < 4:
            return result
        failed = type(result)()
        failed.set_exception(self.error("it is broken"))
        return failed


class Lost(Failing):
    error = DeviceLostError


def test_a_model_that_fails_is_not_used_any_more(caplog: pytest.LogCaptureFixture) -> None:
    drafting = Drafting(hashed, graphs=Failing)
    with FakeEngine(hashed, times=Cheap(), context=CONTEXT, batch=64) as engine:
        drafting.begin(engine)
        asked = engine.ask([2, 3, 4], max_tokens=40)
        assert asked.answer()[1] == alone([2, 3, 4], 40)
        engine.wait_until_idle()
    assert len(drafting.graphs.steps) == 4
    assert "the draft model failed, and is not used any more: it is broken" in caplog.text
    assert asked.sequence.accepted < 10


def test_a_lost_device_ends_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    drafting = Drafting(hashed, graphs=Lost)
    with FakeEngine(hashed, times=Cheap(), context=CONTEXT, batch=64) as engine:
        drafting.begin(engine)
        _, _, reason = engine.ask([2, 3, 4], max_tokens=40).answer()
    assert "it is broken" in reason
    assert "the run loop has failed" in caplog.text


def shifted(prompt: list[int], count: int, context: int, keep: int) -> list[int]:
    """Return an answer of so many tokens in a context that is shifted when it is full."""
    history, answer = list(prompt), list[int]()
    while len(answer) < count:
        answer.append(hashed(history))
        history.append(answer[-1])
        if len(history) > context:
            dropped = shift_count(context, keep, context)
            history = history[:keep] + history[keep + dropped :]
    return answer


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("cells", [40, 200])
def test_answers_are_the_same_with_cancels_and_shifts(seed: int, cells: int) -> None:
    source = random.Random(seed)
    context, most = source.choice([16, 33]), source.choice([0, 2, 15])
    drafting = Drafting(cells=cells, context=context, max_following=most)
    size: dict[str, Any] = {"slots": 3, "context": 33, "batch": source.choice([3, 8, 64])}
    with FakeEngine(hashed, times=Cheap(), kv_unified=source.random() < 0.5, **size) as engine:
        drafting.begin(engine)
        asked = []
        for _ in range(20):
            prompt = [source.randrange(2, 20) for _ in range(source.randrange(1, 20))]
            count, keep = source.choice([1, 8, 30, 90]), source.choice([0, 4])
            one = engine.ask(prompt, max_tokens=count, keep=keep, shift=True)
            asked.append((prompt, count, keep, one))
            if source.random() < 0.3:
                engine.runner.cancel(source.choice(asked)[-1].sequence)
        for prompt, count, keep, one in asked:
            _, tokens, reason = one.answer()
            wanted = shifted(prompt, count, 33, keep)
            assert tokens == (wanted[: len(tokens)] if reason == "cancelled" else wanted)
        engine.wait_until_idle()
        assert sum(one.sequence.accepted for *_, one in asked) > 0
    drafting.check()
