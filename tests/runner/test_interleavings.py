"""Many requests in any order: each gets the same answer as alone, and no cell leaks."""

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from support.fake_graphs import EOS, FakeEngine, FakeGraphs, hashed_or_end

from tampu.ml.backend import Computed
from tampu.runner.context_shift import shift_count
from tampu.runner.step_inputs import StepInputs


def alone(
    prompt: list[int], *, max_tokens: Any, context: int, keep: int = 4, shift: bool = True
) -> tuple[list[Any], str]:
    """Return a sequence's tokens and why it ends, computed one by one."""
    history = list(prompt)
    answer: list[int] = []
    keep = min(len(prompt) if keep < 0 else keep, context - 1)
    while len(answer) < max_tokens:
        token = hashed_or_end(history)
        if token == EOS:
            return answer, "stop"
        history.append(token)
        answer.append(token)
        if len(history) > context and len(answer) < max_tokens:
            if not shift:
                return answer, "length"
            dropped = shift_count(context, keep, context)
            history = history[:keep] + history[keep + dropped :]
    return answer, "length"


class LateGraphs(FakeGraphs):
    """Computes on another thread, with random delays."""

    def submit(self, step: StepInputs) -> Future[Computed]:
        result = super().submit(step)
        late = type(result)()
        pause = random.Random(len(self.steps)).random() * 0.0004
        threading.Timer(pause, lambda: late.set_result(result.result())).start()
        return late


def requests(
    source: random.Random, context: int, count: int
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Return requests with common prefixes."""
    prefixes = [[source.randrange(2, 20) for _ in range(8)] for _ in range(2)]
    for _ in range(count):
        start = source.choice(prefixes)[: source.randrange(9)]
        own = [source.randrange(2, 20) for _ in range(source.randrange(1, context))]
        yield (
            (start + own)[:context],
            {
                "max_tokens": source.choice([0, 1, 5, 5, 20, 3 * context]),
                "keep": source.choice([-1, 0, 4, 100]),
                "shift": source.random() < 0.7,
            },
        )


@pytest.mark.seed("S1", "S2", "S78", "S80")
@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(n, marks=pytest.mark.slow) for n in range(4, 12))]
)
@pytest.mark.parametrize("graphs", [FakeGraphs, LateGraphs])
@pytest.mark.parametrize("kv_unified", [False, True])
def test_every_request_gets_the_same_tokens_as_alone(
    seed: int, graphs: type[FakeGraphs], kv_unified: bool
) -> None:
    source = random.Random(seed)
    context, slots = source.choice([9, 16, 33]), source.choice([1, 2, 4])
    batch = source.choice([1, 3, 8, 64])
    size: dict[str, Any] = {"slots": slots, "context": context, "kv_unified": kv_unified}
    with FakeEngine(hashed_or_end, **size, batch=batch, graphs=graphs) as engine:
        asked = []
        for prompt, options in requests(source, context, 12):
            asked.append((prompt, options, engine.ask(prompt, **options)))
            if source.random() < 0.3:
                time.sleep(source.random() * 0.002)
        for prompt, options, one in asked:
            _, tokens, reason = one.answer()
            assert (tokens, reason) == alone(prompt, context=context, **options), (prompt, options)
        engine.wait_until_idle()


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(n, marks=pytest.mark.slow) for n in range(3, 8))]
)
@pytest.mark.parametrize("graphs", [FakeGraphs, LateGraphs])
@pytest.mark.parametrize("kv_unified", [False, True])
def test_cancelling_at_any_moment_leaks_no_cell(
    seed: int, graphs: type[FakeGraphs], kv_unified: bool
) -> None:
    source = random.Random(seed)
    size: dict[str, Any] = {"slots": 3, "context": 16, "kv_unified": kv_unified}
    with FakeEngine(hashed_or_end, **size, batch=5, graphs=graphs) as engine:
        asked = []
        for prompt, options in requests(source, 16, 30):
            one = engine.ask(prompt, **options)
            asked.append((prompt, options, one))
            for *_, other in source.sample(asked, min(len(asked), 2)):
                if source.random() < 0.5:
                    time.sleep(source.random() * 0.0005)
                    engine.runner.cancel(other.sequence)
        for prompt, options, one in asked:
            _, tokens, reason = one.answer()
            expected, _ = alone(prompt, context=16, **options)
            assert tokens == (expected[: len(tokens)] if reason == "cancelled" else expected)
        engine.wait_until_idle()
        cells = engine.kv_manager.groups[0].cells
        assert cells.available == len(cells)


@pytest.mark.parametrize("seed", range(4))
def test_prompt_logits_do_not_affect_running_sequences(seed: int) -> None:
    source = random.Random(seed)
    with FakeEngine(hashed_or_end, slots=2, context=16, batch=5, graphs=LateGraphs) as engine:
        asked, probed = [], []
        for prompt, options in requests(source, 16, 10):
            asked.append((prompt, options, engine.ask(prompt, **options)))
            text = [source.randrange(2, 20) for _ in range(source.randrange(1, 17))]
            probed.append((text, engine.prompt_logits(text)))
            time.sleep(source.random() * 0.001)
        for prompt, options, one in asked:
            assert one.answer()[1:] == alone(prompt, context=16, **options)
        for text, probe in probed:
            assert probe.answer() == [hashed_or_end(text[: end + 1]) for end in range(len(text))]
        engine.wait_until_idle()


@pytest.mark.parametrize("seed", range(6))
def test_every_request_gets_a_last_event_when_the_loop_closes(seed: int) -> None:
    source = random.Random(seed)
    engine = FakeEngine(hashed_or_end, slots=2, context=16, graphs=LateGraphs)
    asked, probed = [], []
    for prompt, options in requests(source, 16, 8):
        asked.append(engine.ask(prompt, **options))
        probed.append(engine.prompt_logits(prompt))
    time.sleep(source.random() * 0.01)
    engine.runner.close()
    for one in asked:
        assert one.answer()[2] in {"stop", "length", "the runner has ended: it was closed"}
    for probe in probed:
        assert probe.asked.answer()[2] in {"length", "the runner has ended: it was closed"}
