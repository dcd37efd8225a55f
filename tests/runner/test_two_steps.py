"""Two steps in flight: the second takes its tokens from the first one, on the device."""

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from support.fake_drafts import RandomDrafts
from support.fake_graphs import EOS, FakeEngine, FakeGraphs, FakeRequest, hashed_or_end

from tampu.errors import DeviceLostError, OutOfMemoryError, RunnerDiedError
from tampu.ml.backend import Computed
from tampu.runner.graph_cache import PreparedGraph
from tampu.runner.step_inputs import StepInputs

CONTEXT = 24
CANDIDATES = (1, 40)


def count_up(history: list[Any]) -> int:
    return int(history[-1]) + 1 if history[-1] < 20 else 2


@dataclass
class DeviceGraphs(FakeGraphs):
    """Computes one step after another on a thread, and returns what a GPU does.

    Attributes:
        queued: how many steps took tokens from the one before them.
    """

    queued: int = 0
    kept: Any = field(default_factory=lambda: np.zeros(64, np.int32))
    source: random.Random = field(default_factory=lambda: random.Random(1))
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))

    def close(self) -> None:
        """End the thread, which errors with its frames would keep."""
        self._thread.shutdown()

    def launch(self, prepared: PreparedGraph) -> Future[Computed]:
        step: Any = prepared.graph
        self.queued += bool((step.sources >= len(step.tokens)).any())
        return self._thread.submit(self._compute, step)

    def _compute(self, step: StepInputs) -> Computed:
        if self.source.random() < 0.5:
            time.sleep(self.source.random() * 0.0006)
        given = np.concatenate([step.tokens, self.kept])
        computed = self.submit(replace(step, tokens=given[step.sources])).result()
        logits = computed.outputs[0]
        if not step.candidates:
            return computed
        best = np.argsort(-logits, axis=1, kind="stable")[:, : step.candidates]
        if step.candidates == 1:
            self.kept[: len(best)] = best[:, 0]
        chosen = np.take_along_axis(logits, best, axis=1)
        rows = np.concatenate([best, chosen, logits.sum(axis=1, keepdims=True)], axis=1)
        if step.in_full is not None:
            rows = np.concatenate([rows.reshape(-1), logits[step.in_full].reshape(-1)])
        return Computed([rows.astype(np.float32)], 0)


@dataclass
class KeepingGraphs(DeviceGraphs):
    keeps_tokens: bool = True


def requests(source: random.Random) -> Iterator[tuple[list[int], dict[str, Any]]]:
    prefixes = [[source.randrange(2, 20) for _ in range(8)] for _ in range(2)]
    for number in range(14):
        start = source.choice(prefixes)[: source.randrange(9)]
        prompt = start + [source.randrange(2, 20) for _ in range(source.randrange(1, 12))]
        options: dict[str, Any] = {
            "max_tokens": source.choice([0, 1, 5, 20, 3 * CONTEXT]),
            "shift": source.random() < 0.7,
            "stop": source.choice([(), (), ("b",), ("cd", "e")]),
            "ignore_eos": source.random() < 0.3,
            "seed": number,
        }
        kinds: list[dict[str, Any]] = [
            {}, {}, {}, {"temperature": 1.5}, {"logprobs": True}, {"repeat_penalty": 1.3},
            {"max_repeated_tokens": 1}, {"priority": "batch"},
        ]  # fmt: skip
        yield prompt[:CONTEXT], options | source.choice(kinds)


def run(
    graphs: type[DeviceGraphs],
    seed: int,
    cancelled: frozenset[int],
    drafts: RandomDrafts | None = None,
) -> tuple[list[tuple[str, list[int], str]], int]:
    """Return what each request is answered, and how many steps were queued."""
    source, moments = random.Random(seed), random.Random()
    slots, batch = source.choice([1, 2, 4]), source.choice([3, 8, 64])
    batch = 64 if drafts else batch  # there are none beside prompts
    options: dict[str, Any] = {"slots": slots, "context": CONTEXT, "batch": batch}
    options["drafts"] = drafts
    with FakeEngine(hashed_or_end, graphs=graphs, candidates=CANDIDATES, **options) as engine:
        asked: list[FakeRequest] = []
        for prompt, chosen in requests(source):
            asked.append(engine.ask(prompt, **chosen))
            if moments.random() < 0.5:
                time.sleep(moments.random() * 0.002)
            for number in cancelled & {moments.randrange(len(asked))}:
                engine.runner.cancel(asked[number].sequence)
        answers = [each.answer() for each in asked]
        engine.wait_until_idle()
        assert engine.kv_manager.groups[0].cells.available == slots * CONTEXT
        return answers, engine.graphs.queued


@pytest.mark.parametrize(
    "seed", [*range(5), *(pytest.param(n, marks=pytest.mark.slow) for n in range(5, 20))]
)
def test_requests_get_the_tokens_of_the_loop_with_one_step_in_flight(seed: int) -> None:
    cancelled = frozenset({2, 3, 7, 11} if seed % 2 else ())
    wanted, none = run(DeviceGraphs, seed, frozenset())
    found, queued = run(KeepingGraphs, seed, cancelled)
    assert none == 0
    assert queued > 0 or cancelled
    for (text, tokens, reason), (_, all_tokens, end) in zip(found, wanted, strict=True):
        if reason == "cancelled":
            assert tokens == all_tokens[: len(tokens)]
        else:
            assert (tokens, reason) == (all_tokens, end), text


@pytest.mark.parametrize(
    "seed", [*range(5), *(pytest.param(n, marks=pytest.mark.slow) for n in range(5, 20))]
)
@pytest.mark.parametrize("graphs", [DeviceGraphs, KeepingGraphs])
def test_drafts_do_not_change_what_requests_get(graphs: type[DeviceGraphs], seed: int) -> None:
    cancelled = frozenset({2, 3, 7, 11} if seed % 2 else ())
    drafts = RandomDrafts(hashed_or_end, seed)
    wanted, _ = run(DeviceGraphs, seed, frozenset())
    found, _ = run(graphs, seed, cancelled, drafts)
    assert drafts.right > 0 < drafts.wrong
    for (text, tokens, reason), (_, all_tokens, end) in zip(found, wanted, strict=True):
        if reason == "cancelled":
            assert tokens == all_tokens[: len(tokens)]
        else:
            assert (tokens, reason) == (all_tokens, end), text


def ends_at_8(history: list[Any]) -> int:
    return EOS if history[-1] == 8 else count_up(history)


def computed(
    options: dict[str, Any],
    graphs: type[DeviceGraphs],
    follow: Callable[[list[int]], int] = count_up,
) -> tuple[list[int], int, int]:
    """Return an answer's tokens, how many steps there were, and how many of them were queued."""
    with FakeEngine(follow, graphs=graphs, candidates=CANDIDATES) as engine:
        tokens = engine.ask([2, 3], **options).answer()[1]
    return tokens, len(engine.graphs.steps), engine.graphs.queued  # the last one is done


def test_the_step_after_the_last_token_is_not_computed() -> None:
    assert computed({"max_tokens": 6}, KeepingGraphs) == ([4, 5, 6, 7, 8, 9], 6, 5)


def test_a_stop_string_costs_one_step_that_nobody_reads() -> None:
    options = {"stop": ("e",), "max_tokens": 20}  # token 6
    assert computed(options, DeviceGraphs) == ([4, 5], 4, 0)
    assert computed(options, KeepingGraphs) == ([4, 5], 4, 3)


def test_an_end_token_costs_one_step_that_nobody_reads() -> None:
    options = {"max_tokens": 20}
    tokens, steps, _ = computed(options, DeviceGraphs, ends_at_8)
    assert (tokens, steps) == ([4, 5, 6, 7, 8], 6)
    assert computed(options, KeepingGraphs, ends_at_8) == (tokens, 7, 6)


@pytest.mark.parametrize("options", [{"temperature": 1.0}, {"logprobs": True}, {"top_k": 0}])
def test_the_host_s_choice_is_waited_for(options: dict[str, Any]) -> None:
    options = {"max_tokens": 6, "seed": 1, **({"temperature": 1.0} | options)}
    assert computed(options, KeepingGraphs) == computed(options, DeviceGraphs)
    assert computed(options, KeepingGraphs)[2] == 0


@dataclass
class FailingGraphs(KeepingGraphs):
    """The device has no memory for the third step and the fourth, which is queued behind it."""

    begun: int = 0

    def _compute(self, step: StepInputs) -> Computed:
        self.begun += 1
        if self.begun in (3, 4):
            raise OutOfMemoryError("no memory was left")
        return super()._compute(step)


def test_a_step_queued_behind_one_that_fails_ends_no_other_requests() -> None:
    with FakeEngine(count_up, graphs=FailingGraphs, candidates=CANDIDATES) as engine:
        failing, waiting = engine.runner.call(
            lambda: [engine.ask(prompt, max_tokens=6) for prompt in ([2, 3], [2, 3, 4])]
        )
        assert failing.answer()[2] == "no memory was left"
        assert waiting.answer()[1:] == ([5, 6, 7, 8, 9, 10], "length")
        engine.wait_until_idle()
        assert engine.graphs.begun == 4 + 6
        engine.graphs.close()


@dataclass
class LostGraphs(FailingGraphs):
    """The device is lost in the fourth step, while the one before it has no memory."""

    def _compute(self, step: StepInputs) -> Computed:
        if self.begun == 3:
            raise DeviceLostError("computing failed")
        return super()._compute(step)


def test_a_device_lost_in_a_queued_step_ends_the_loop() -> None:
    engine = FakeEngine(count_up, graphs=LostGraphs, candidates=CANDIDATES)
    asked = engine.runner.call(
        lambda: [engine.ask(prompt, max_tokens=6) for prompt in ([2, 3], [2, 3, 4])]
    )
    assert asked[0].answer()[2] == "no memory was left"
    assert "computing failed" in asked[1].answer()[2]
    with pytest.raises(RunnerDiedError):
        engine.ask([2, 3], max_tokens=6)
    engine.runner.close()
    engine.graphs.close()


def test_nan_logits_end_only_their_own_request() -> None:
    def follow(history: list[Any]) -> int | None:
        return None if history[0] == 9 and len(history) > 3 else count_up(history)

    with FakeEngine(follow, graphs=KeepingGraphs, candidates=CANDIDATES, slots=2) as engine:
        bad, good = engine.runner.call(
            lambda: [engine.ask(prompt, max_tokens=8) for prompt in ([9, 2], [3, 2])]
        )
        assert good.answer()[1] == [3, 4, 5, 6, 7, 8, 9, 10]
        assert "nan" in bad.answer()[2]
        assert engine.graphs.queued > 3
        assert engine.ask([9, 2, 3], max_tokens=1).answer()[1] == [4]
        engine.wait_until_idle()
