"""Planning of batches, usage, cancellation and log-probabilities."""

import itertools
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, cast

import numpy as np
import pytest
from support.fake_graphs import FakeEngine, FakeGraphs, count_up
from support.waiting import wait_until

from tampu.kvcache import AttentionGroup, Cells, KVCacheManager
from tampu.ml.backend import Computed
from tampu.runner.context_shift import shift_count
from tampu.runner.events import TextDelta
from tampu.runner.generate_options import GenerateOptions
from tampu.runner.scheduler import Scheduler
from tampu.runner.sequence import Sequence
from tampu.runner.step_inputs import StepInputs


class Recorded(FakeGraphs):
    """Notes the order of planning, launching and the ends of batches; each step waits its turn."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.seen: list[Any] = []

    def watch(self, engine: Any) -> None:
        plan = engine.scheduler.plan

        def planned() -> Any:
            made = plan()
            if made is not None:
                self.seen.append(f"plan {sum(part.count for part in made.parts)}")
            return made

        engine.scheduler.plan = planned

    def submit(self, step: StepInputs) -> Future[Computed]:
        done = super().submit(step)
        self.seen.append(f"launch {len(step.tokens)}")
        late = type(done)()
        wait, seen = late.result, self.seen

        def result(timeout: Any = None) -> Computed:
            seen.append(f"end {len(step.tokens)}")
            return wait(timeout)

        late.set_result(done.result())
        late.result = result
        return late


# The pipeline


@pytest.mark.seed("S1")
def test_a_batch_is_planned_while_the_previous_one_computes() -> None:
    engine = FakeEngine(count_up, graphs=Recorded)
    engine.graphs.watch(engine)
    engine.ask([2, 3, 4], max_tokens=3).events()
    engine.runner.close()
    assert engine.graphs.seen == [
        "plan 3", "launch 3",
        "plan 1", "end 3", "launch 1",
        "plan 1", "end 1", "launch 1",
        "end 1",
    ]  # fmt: skip


@pytest.mark.seed("S1", "S2")
def test_a_batch_that_no_sequence_needs_is_not_launched() -> None:
    with FakeEngine(lambda history: 1 if len(history) == 4 else 5, graphs=Recorded) as engine:
        engine.graphs.watch(engine)
        engine.ask([2, 3], max_tokens=9).events()
        engine.wait_until_idle()
        launched = [seen for seen in engine.graphs.seen if seen.startswith("launch")]
        planned = [seen for seen in engine.graphs.seen if seen.startswith("plan")]
        assert (len(planned), len(launched)) == (4, 3)


# Fairness


@pytest.fixture
def scheduler() -> Callable[..., Any]:
    """Make a scheduler; nothing is computed."""

    def make(*, slots: int = 4, batch: int = 8, cells: int = 64) -> Scheduler:
        kv_manager = KVCacheManager([AttentionGroup(Cells(cells))])
        return Scheduler(kv_manager, slots=slots, max_batch_tokens=batch, max_outputs=slots)

    return make


@pytest.fixture
def sequences() -> Callable[..., Any]:
    """Make sequences of some prompt lengths that arrive together, without a common prefix."""
    engine = FakeEngine(count_up, context=32)
    engine.runner.close()
    engine.runner.submit = cast("Any", lambda _sequence: None)
    first, order = iter(range(2, 21)), itertools.count()

    def make(*lengths: int) -> list[Sequence]:
        made = [engine.ask([next(first), *[3] * (n - 1)]).sequence for n in lengths]
        for each in made:
            each.times.submitted = next(order)
        return made

    return make


def parts(plan: Any) -> list[Any]:
    return [(p.start, p.count, p.output if p.outputs else None) for p in plan.parts]


def test_shorter_prompts_are_computed_first(
    scheduler: Callable[..., Any], sequences: Callable[..., Any]
) -> None:
    made = scheduler(batch=8)
    made.waiting.extend(sequences(9, 5, 2))
    made.start_waiting()
    plan = made.plan()
    assert parts(plan) == [(0, 2, 0), (0, 5, 1), (0, 1, None)]
    assert parts(made.plan()) == [(1, 8, 0)]
    assert plan.inputs.positions.tolist() == [0, 1, 0, 1, 2, 3, 4, 0]
    assert plan.inputs.outputs.tolist() == [1, 6]


def test_a_much_earlier_long_prompt_is_computed_first(
    scheduler: Callable[..., Any], sequences: Callable[..., Any]
) -> None:
    made = scheduler(batch=8)
    long, short = sequences(9, 2)
    long.times.submitted -= 10**9
    made.waiting.extend([short, long])
    made.start_waiting()
    assert parts(made.plan()) == [(0, 8, None)]


def test_interactive_requests_come_before_batch_requests(
    scheduler: Callable[..., Any], sequences: Callable[..., Any]
) -> None:
    made = scheduler(slots=1)
    first, second = sequences(2, 9)
    first.options = GenerateOptions(priority="batch")
    made.waiting.extend([first, second])
    assert made.start_waiting() == [second]
    first.times.submitted -= 60 * 10**9
    made.waiting.append(third := sequences(1)[0])
    made.release(second)
    assert made.start_waiting() == [third]
    assert made.waiting == [first]


def test_decoding_sequences_come_before_prompts(
    scheduler: Callable[..., Any], sequences: Callable[..., Any]
) -> None:
    made = scheduler(batch=4)
    long, short = sequences(12, 1)
    made.waiting.extend([long, short])
    made.start_waiting()
    plan = made.plan()
    assert [part.sequence for part in plan.parts] == [short, long]
    assert parts(plan) == [(0, 1, 0), (0, 3, None)]


def test_a_batch_never_exceeds_its_limit(
    scheduler: Callable[..., Any], sequences: Callable[..., Any]
) -> None:
    made = scheduler(slots=9, batch=3)
    made.waiting.extend(sequences(*[1] * 9))
    made.start_waiting()
    assert [len(made.plan().parts) for _ in range(3)] == [3, 3, 3]
    assert made.plan() is None


def test_as_many_sequences_run_as_there_are_slots(
    scheduler: Callable[..., Any], sequences: Callable[..., Any]
) -> None:
    made = scheduler(slots=2)
    first, second, third = sequences(3, 3, 3)
    made.waiting.extend([first, second, third])
    assert made.start_waiting() == [first, second]
    assert made.start_waiting() == []
    made.release(first)
    assert made.start_waiting() == [third]
    made.release(third)
    made.release(second)
    made.check()
    assert made.is_idle


def test_a_plan_is_filled_when_its_tokens_are_known(
    scheduler: Callable[..., Any], sequences: Callable[..., Any]
) -> None:
    made = scheduler()
    (sequence,) = sequences(3)
    made.waiting.append(sequence)
    made.start_waiting()
    first = made.plan()
    first.fill()
    assert first.inputs.tokens.tolist() == sequence.tokens[:3].tolist()
    sequence.awaited = 1
    second = made.plan()
    assert parts(second) == [(3, 1, 0)]
    sequence.append(17)
    sequence.awaited = 0
    second.fill()
    assert second.inputs.tokens.tolist() == [17]
    assert second.inputs.segments[0].cells.tolist() == [[0, 1, 2, 3]]


def test_rolling_back_a_plan_frees_its_cells(
    scheduler: Callable[..., Any], sequences: Callable[..., Any]
) -> None:
    made = scheduler()
    made.waiting.extend(sequences(3, 2))
    made.start_waiting()
    cells = made.kv_manager.groups[0].cells
    before = cells.available
    plan = made.plan()
    assert cells.available == before - 5
    for part in plan.parts:
        part.sequence.finish = "cancelled"
    assert not made.is_needed(plan)
    assert cells.available == before
    for part in plan.parts:
        part.sequence.finish = None
    assert parts(made.plan()) == parts(plan)
    made.check()


def test_without_a_free_cell_nothing_is_planned(
    scheduler: Callable[..., Any], sequences: Callable[..., Any]
) -> None:
    made = scheduler(cells=4)
    made.waiting.extend(sequences(4, 3))
    made.start_waiting()
    assert parts(made.plan()) == [(0, 3, 0), (0, 1, None)]
    assert made.plan() is None


# Context shift


@pytest.mark.seed("S80")
@pytest.mark.parametrize(
    ("length", "keep", "capacity", "dropped"),
    [
        (2048, 5, 2048, 1021),
        (2048, 2047, 2048, 1),
        (2048, 0, 2048, 1024),
        (5000, 5, 2048, 3973),
        (512, 5, 2048, 0),
        (4, 3, 4, 1),
        (10, 2, 10, 4),
    ],
)
def test_a_shift_frees_half_of_the_tokens_not_kept(
    length: int, keep: int, capacity: int, dropped: int
) -> None:
    assert shift_count(length, keep, capacity) == dropped


@pytest.fixture
def full(scheduler: Callable[..., Any], sequences: Callable[..., Any]) -> tuple[Any, Any]:
    """Return a scheduler with one sequence whose context of ten tokens is full."""
    made = scheduler(cells=64)
    (sequence,) = sequences(10)
    sequence.tokens = sequence.keys = np.zeros(11, np.int32)
    sequence.tokens[:10] = range(100, 110)
    sequence.cell_table = made.kv_manager.allocate(10)
    made.waiting.append(sequence)
    made.start_waiting()
    made.plan(), made.plan()
    sequence.append(110)
    return made, sequence


@pytest.mark.seed("S80")
def test_a_shift_drops_tokens_after_the_kept_ones(full: tuple[Any, Any]) -> None:
    made, sequence = full
    cells = sequence.cell_table.cells[0].tolist()
    assert made.shift(sequence, 2) == (4, [pytest.approx(cells[6:10])])
    assert sequence.tokens[: sequence.length].tolist() == [100, 101, 106, 107, 108, 109, 110]
    assert (sequence.computed, sequence.dropped) == (6, 4)
    assert sequence.cell_table.cells[0, :6].tolist() == cells[:2] + cells[6:10]
    made.check()
    assert made.kv_manager.groups[0].cells.available == 64 - 6


@pytest.mark.seed("S80")
def test_rows_moved_by_a_shift_are_not_shared(
    full: tuple[Any, Any], sequences: Callable[..., Any]
) -> None:
    made, sequence = full
    made.shift(sequence, 2)
    made.release(sequence)
    (other,) = sequences(7)
    other.tokens[:7] = [100, 101, 106, 107, 108, 109, 110]
    made.waiting.append(other)
    made.start_waiting()
    made.plan()
    assert other.cached <= 2


@pytest.mark.seed("S80")
def test_shared_cells_are_not_moved(full: tuple[Any, Any]) -> None:
    made, sequence = full
    other = made.kv_manager.allocate(10)
    made.kv_manager.match_prefix(other, sequence.keys[:8])
    assert other.length == 8
    assert made.shift(sequence, 2) is None
    assert made.recompute(sequence, 2) == 4
    assert sequence.tokens[: sequence.length].tolist() == [100, 101, 106, 107, 108, 109, 110]
    assert (sequence.computed, sequence.dropped) == (0, 4)
    assert made.plan().parts[0].start == 2  # the kept tokens are in the cache


# What is counted and reported


def test_the_usage_counts_tokens_and_time() -> None:
    with FakeEngine(count_up) as engine:
        engine.ask([2, 3, 4, 5], max_tokens=2).events()
        *_, done = engine.ask([2, 3, 4, 5, 9], max_tokens=3).events()
    usage = done.usage
    assert (usage.prompt_tokens, usage.cached_tokens, usage.generated_tokens) == (5, 4, 3)
    assert usage.dropped_tokens == 0
    assert 0 < usage.prompt_ns < usage.total_ns
    assert 0 < usage.generated_ns < usage.total_ns


@pytest.mark.seed("S80")
def test_the_usage_counts_the_tokens_that_a_shift_dropped() -> None:
    with FakeEngine(count_up, context=16) as engine:
        *_, done = engine.ask([2, 3], max_tokens=20, keep=0).events()
    assert done.usage.dropped_tokens == 8
    assert done.usage.prompt_tokens == 2


def test_a_cancelled_request_reports_its_usage() -> None:
    with FakeEngine(count_up, context=16) as engine:
        asked = engine.ask([2])
        wait_until(lambda: asked.sequence.generated >= 5, "five tokens are there")
        engine.runner.cancel(asked.sequence)
        *texts, done = asked.events()
    assert done.reason == "cancelled"
    assert done.usage.generated_tokens >= 5
    counts = [len(text.tokens) for text in texts if isinstance(text, TextDelta)]
    assert sum(counts) <= done.usage.generated_tokens


def test_a_waiting_request_can_be_cancelled() -> None:
    with FakeEngine(count_up) as engine:
        running = engine.ask([2])
        waiting = engine.ask([3])
        engine.runner.cancel(waiting.sequence)
        assert waiting.answer() == ("", [], "cancelled")
        engine.runner.cancel(running.sequence)
        running.events()
        engine.wait_until_idle()


def test_cancelling_twice_or_after_the_end_does_nothing() -> None:
    with FakeEngine(count_up) as engine:
        asked = engine.ask([2], max_tokens=2)
        assert asked.answer()[2] == "length"
        engine.runner.cancel(asked.sequence)
        engine.runner.cancel(asked.sequence)
        assert engine.ask([2], max_tokens=2).answer()[1] == [3, 4]
        assert asked._events.empty()


def test_each_token_has_its_logprob_if_requested() -> None:
    with FakeEngine(count_up) as engine:
        asked = engine.ask([2], max_tokens=3, logprobs=True, top_logprobs=2)
        texts = [event for event in asked.events() if isinstance(event, TextDelta)]
    entries = [entry for text in texts for entry in text.logprobs]
    assert [entry.token for entry in entries] == [3, 4, 5]
    best = 10 - np.log(np.exp(10) + 63)
    for entry in entries:
        assert entry.logprob == pytest.approx(best, abs=1e-5)
        assert [token for token, _ in entry.top] == [entry.token, 0]


def test_tokens_are_sent_with_their_text() -> None:
    with FakeEngine(count_up) as engine:
        asked = engine.ask([2], max_tokens=6, stop=("cdx",))
        texts = [event for event in asked.events() if isinstance(event, TextDelta)]
    assert [(text.text, text.tokens) for text in texts] == [
        ("b", (3,)),
        ("cde", (4, 5, 6)),
        ("f", (7,)),
        ("g", (8,)),
    ]


@pytest.mark.seed("S11")
@pytest.mark.parametrize("end", [1, 30, 63])
def test_each_end_token_ends_an_answer(end: int) -> None:
    with FakeEngine(lambda history: end if len(history) == 3 else 5) as engine:
        engine.runner._outputs._ends = frozenset({1, 30, 63})
        assert engine.ask([2], max_tokens=9).answer() == ("dd", [5, 5], "stop")
