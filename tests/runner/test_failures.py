"""Errors in the loop: which requests fail, and which continue."""

import logging
import queue
import threading
from concurrent.futures import Future
from typing import Any, NoReturn, cast

import pytest
from support.fake_graphs import FakeEngine, FakeGraphs, count_up
from support.waiting import wait_until

from tampu.errors import ComputeError, OutOfMemoryError, RunnerDiedError
from tampu.ml.backend import Computed
from tampu.runner.events import Done, Failed
from tampu.runner.sequence import RowCollector
from tampu.runner.step_inputs import StepInputs


def counted(prompt: list[Any], count: int) -> list[Any]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(count_up(tokens))
    return tokens[len(prompt) :]


def failing(*when: int, error: Exception | None = None, at_once: bool = False) -> type[FakeGraphs]:
    """Return graphs that fail in the steps of these numbers, before anything is written."""
    failure = error or ComputeError("the device is on fire")

    class Failing(FakeGraphs):
        def submit(self, step: StepInputs) -> Future[Computed]:
            if len(self.steps) not in when:
                return super().submit(step)
            self.steps.append([])
            if at_once:
                raise failure
            result: Future[Computed] = Future()
            result.set_exception(failure)
            return result

    return Failing


class HeldGraphs(FakeGraphs):
    """Computes each step only when it is released."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.held: queue.Queue[Any] = queue.Queue()

    def submit(self, step: StepInputs) -> Future[Computed]:
        computed = super().submit(step)
        result = type(computed)()
        self.held.put((result, computed.result()))
        return result

    def release(self, error: Any = None) -> None:
        result, computed = self.held.get(timeout=60)
        if error:
            result.set_exception(error)
        else:
            result.set_result(computed)


# A batch that fails


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("error", [ComputeError("status 1"), OutOfMemoryError("no memory")])
def test_a_failed_batch_ends_its_sequences_with_the_error(
    error: ComputeError | OutOfMemoryError, at_once: bool
) -> None:
    with FakeEngine(count_up, graphs=failing(1, error=error, at_once=at_once)) as engine:
        *_, end = engine.ask([2, 3], max_tokens=5).events()
        assert end == Failed(type(error).__name__, str(error))
        assert engine.ask([2, 3], max_tokens=3).answer()[1] == [4, 5, 6]
        engine.wait_until_idle()


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("step", [0, 1, 2])
def test_rows_of_a_failed_batch_are_not_reused(step: int, at_once: bool) -> None:
    prompt = list(range(2, 14))
    with FakeEngine(count_up, batch=4, graphs=failing(step, at_once=at_once)) as engine:
        assert "on fire" in engine.ask(prompt, max_tokens=3).answer()[2]
        engine.wait_until_idle()
        again = engine.ask(prompt, max_tokens=3)
        assert again.answer()[1] == counted(prompt, 3)
        assert again.sequence.cached == 0


def test_sequences_that_share_rows_with_a_failed_batch_fail_too() -> None:
    prompt = list(range(2, 18))
    with FakeEngine(count_up, slots=2, graphs=HeldGraphs) as engine:
        first = engine.ask(prompt, max_tokens=5)
        wait_until(lambda: engine.graphs.steps, "a step is under way")
        second = engine.ask([*prompt[:12], 9], max_tokens=5)
        engine.graphs.release()  # the first half; the second half, which both want, is under way
        wait_until(lambda: second.sequence.cached, "the second shares the first's prefix")
        engine.graphs.release(ComputeError("on fire"))
        assert "on fire" in first.answer()[2]
        assert "on fire" in second.answer()[2]
        third = engine.ask(prompt, max_tokens=2)
        for _ in range(3):
            engine.graphs.release()
        assert third.answer()[1] == counted(prompt, 2)
        engine.wait_until_idle()


def test_a_failed_batch_does_not_affect_waiting_requests() -> None:
    with FakeEngine(count_up, graphs=failing(0)) as engine:
        asked = [engine.ask([2 + i], max_tokens=2) for i in range(3)]
        assert "on fire" in asked[0].answer()[2]
        assert [one.answer()[1] for one in asked[1:]] == [[4, 5], [5, 6]]


# One sequence that fails


def test_rows_of_a_sequence_with_nan_logits_are_not_reused() -> None:
    def follow(history: list[int]) -> int | None:
        return None if len(history) == 5 else count_up(history)

    with FakeEngine(follow) as engine:
        *_, end = engine.ask([2, 3, 4], max_tokens=9).events()
        assert isinstance(end, Failed)
        assert end.kind == "ComputeError"
        engine.wait_until_idle()
        again = engine.ask([2, 3, 4, 5], max_tokens=1)
        again.events()
        assert again.sequence.cached == 0


def test_logits_of_the_wrong_width_end_the_sequence() -> None:
    class Narrow(FakeGraphs):
        def submit(self, step: StepInputs) -> Future[Computed]:
            result = super().submit(step)
            outputs = [output[:, :10] for output in result.result().outputs]
            narrow = type(result)()
            narrow.set_result(Computed(outputs, 0))
            return narrow

    with FakeEngine(count_up, graphs=Narrow) as engine:
        *_, end = engine.ask([2]).events()
        assert (type(end), end.kind) == (Failed, "ShapeError")


def test_a_failing_sink_ends_only_its_own_request(caplog: pytest.LogCaptureFixture) -> None:
    with FakeEngine(count_up, slots=2) as engine:
        bad = engine.ask([2], max_tokens=1000)

        def sink(_event: object) -> NoReturn:
            raise RuntimeError("the caller's own")

        bad.sequence.sink = sink
        good = engine.ask([3], max_tokens=30)
        assert good.answer()[1] == counted([3], 30)
        engine.wait_until_idle()
        assert engine.ask([5], max_tokens=2).answer()[1] == [6, 7]
    assert "the caller's own" in caplog.text


# The logits of every token of a prompt


def test_failed_prompt_logits_report_the_error_and_free_their_cells() -> None:
    with FakeEngine(count_up, graphs=failing(1)) as engine:
        assert "on fire" in engine.prompt_logits(range(2, 10)).asked.answer()[2]
        assert engine.prompt_logits([2, 3]).answer() == [3, 4]
        engine.wait_until_idle()


def test_prompt_logits_wait_for_cells_in_use() -> None:
    with FakeEngine(count_up, context=16) as engine:
        running = engine.ask([2], max_tokens=14)
        logits = engine.prompt_logits(range(2, 18))
        assert running.answer()[1] == counted([2], 14)
        assert logits.answer() == [count_up([token]) for token in range(2, 18)]
        engine.wait_until_idle()


def test_prompt_logits_stay_within_the_reserved_outputs() -> None:
    with FakeEngine(count_up) as engine:
        engine.prompt_logits(range(2, 12)).answer()
        assert [len(step) for step in engine.graphs.steps] == [4, 4, 2]


def test_prompt_logits_can_be_cancelled() -> None:
    with FakeEngine(count_up, graphs=HeldGraphs) as engine:
        logits = engine.prompt_logits(range(2, 12))
        wait_until(lambda: engine.graphs.steps, "a step is under way")
        engine.runner.cancel(logits.asked.sequence)
        for _ in range(2):
            engine.graphs.release()
        assert logits.asked.answer()[2] == "cancelled"
        engine.wait_until_idle()


def test_an_error_of_a_collector_reaches_its_caller() -> None:
    def collect(_rows: object) -> NoReturn:
        raise ValueError("no room")

    engine = FakeEngine(count_up)
    assert "no room" in engine.ask([2, 3], RowCollector(collect), max_tokens=0).answer()[2]
    engine.runner.close()


# The end of the loop


def test_an_unexpected_error_ends_all_sequences_with_its_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    error = RuntimeError("a mistake of the program")
    engine = FakeEngine(count_up, graphs=HeldGraphs)
    asked = [engine.ask([2 + i], max_tokens=9) for i in range(3)]
    engine.graphs.release(error)
    for one in asked:
        *_, end = one.events()
        assert end == Failed("RunnerDiedError", "the runner has ended: a mistake of the program")
    with pytest.raises(RunnerDiedError, match="a mistake of the program"):
        engine.ask([2])
    assert any(record.levelno == logging.ERROR for record in caplog.records)
    engine.runner.close()


def test_a_request_submitted_during_close_gets_a_last_event() -> None:
    engine = FakeEngine(count_up)
    real = engine.runner._inbox.put
    closer = threading.Thread(target=engine.runner.close)

    class LateInbox:
        """Closes the loop between the check and the put."""

        def put(self, job: Any) -> None:
            if job is not None and not closer.is_alive():
                closer.start()
                engine.runner._thread.join(0.2)
            real(job)

        def get(self) -> Any:
            return inbox.get()

        def empty(self) -> bool:
            return inbox.empty()

    inbox = engine.runner._inbox
    engine.runner._inbox = cast("queue.SimpleQueue[Any]", LateInbox())
    asked = engine.ask([2], max_tokens=3)
    *_, end = asked.events()
    assert isinstance(end, Failed | Done)
    closer.join()


def test_closing_twice_does_nothing() -> None:
    engine = FakeEngine(count_up)
    engine.runner.close()
    engine.runner.close()


def test_closing_waits_for_the_batch_on_the_device() -> None:
    engine = FakeEngine(count_up, graphs=HeldGraphs)
    asked = engine.ask([2])
    wait_until(lambda: engine.graphs.steps, "a step is under way")
    closer = threading.Thread(target=engine.runner.close)
    closer.start()
    wait_until(engine.runner._stopped.is_set, "the loop is asked to end")
    closer.join(0.02)
    assert closer.is_alive()
    engine.graphs.release()
    engine.graphs.release()  # the batch that was planned meanwhile
    closer.join(10)
    assert not closer.is_alive()
    assert "closed" in asked.answer()[2]
