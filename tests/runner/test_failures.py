"""What goes wrong in the loop: who hears of it, and who goes on."""

import logging
import queue
import threading
from concurrent.futures import Future

import pytest
from support.fake_graphs import Desk, FakeGraphs
from support.waiting import wait_until

from tampu.errors import ComputeError, OutOfMemoryError, RunnerDiedError
from tampu.ml.backend import Computed
from tampu.runner.events import Done, Failed
from tampu.runner.sequence import RowCollector


def count_up(history):
    return history[-1] + 1 if history[-1] < 20 else 2


def counted(prompt, count):
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(count_up(tokens))
    return tokens[len(prompt) :]


def failing(*when, error=None, at_once=False):
    """Return graphs that fail in the steps of these numbers, before anything is written."""
    error = error or ComputeError("the device is on fire")

    class Failing(FakeGraphs):
        def submit(self, step):
            if len(self.steps) not in when:
                return super().submit(step)
            self.steps.append([])
            if at_once:
                raise error
            result: Future[Computed] = Future()
            result.set_exception(error)
            return result

    return Failing


class HeldGraphs(FakeGraphs):
    """Computes each step only when it is let go."""

    def __post_init__(self):
        super().__post_init__()
        self.held = queue.Queue()

    def submit(self, step):
        computed = super().submit(step)
        result = type(computed)()
        self.held.put((result, computed.result()))
        return result

    def let_go(self, error=None):
        result, computed = self.held.get(timeout=60)
        if error:
            result.set_exception(error)
        else:
            result.set_result(computed)


# A batch that fails


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("error", [ComputeError("status 1"), OutOfMemoryError("no memory")])
def test_a_batch_that_fails_ends_its_sequences_with_the_message(error, at_once):
    with Desk(count_up, graphs=failing(1, error=error, at_once=at_once)) as desk:
        *_, end = desk.ask([2, 3], max_tokens=5).events()
        assert end == Failed(type(error).__name__, str(error))
        assert desk.ask([2, 3], max_tokens=3).answer()[1] == [4, 5, 6]
        desk.rest()


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("step", [0, 1, 2])
def test_rows_that_were_not_computed_are_not_used_again(step, at_once):
    prompt = list(range(2, 14))
    with Desk(count_up, batch=4, graphs=failing(step, at_once=at_once)) as desk:
        assert "on fire" in desk.ask(prompt, max_tokens=3).answer()[2]
        desk.rest()
        again = desk.ask(prompt, max_tokens=3)
        assert again.answer()[1] == counted(prompt, 3)
        assert again.sequence.cached == 0


def test_sequences_that_share_rows_with_a_failed_batch_fail_too():
    prompt = list(range(2, 18))
    with Desk(count_up, slots=2, graphs=HeldGraphs) as desk:
        first = desk.ask(prompt, max_tokens=5)
        wait_until(lambda: desk.graphs.steps, "a step is under way")
        second = desk.ask([*prompt[:12], 9], max_tokens=5)
        desk.graphs.let_go()  # the first half; the second half, which both want, is under way
        wait_until(lambda: second.sequence.cached, "the second shares the first's beginning")
        desk.graphs.let_go(ComputeError("on fire"))
        assert "on fire" in first.answer()[2]
        assert "on fire" in second.answer()[2]
        third = desk.ask(prompt, max_tokens=2)
        for _ in range(3):
            desk.graphs.let_go()
        assert third.answer()[1] == counted(prompt, 2)
        desk.rest()


def test_a_batch_that_fails_does_not_touch_those_that_wait():
    with Desk(count_up, graphs=failing(0)) as desk:
        asked = [desk.ask([2 + i], max_tokens=2) for i in range(3)]
        assert "on fire" in asked[0].answer()[2]
        assert [one.answer()[1] for one in asked[1:]] == [[4, 5], [5, 6]]


# One sequence that fails


def test_the_rows_of_a_sequence_with_unusable_logits_are_not_used_again():
    def follow(history):
        return None if len(history) == 5 else count_up(history)

    with Desk(follow) as desk:
        *_, end = desk.ask([2, 3, 4], max_tokens=9).events()
        assert isinstance(end, Failed)
        assert end.kind == "ComputeError"
        desk.rest()
        again = desk.ask([2, 3, 4, 5], max_tokens=1)
        again.events()
        assert again.sequence.cached == 0


def test_logits_of_another_width_end_the_sequence():
    class Narrow(FakeGraphs):
        def submit(self, step):
            result = super().submit(step)
            outputs = [output[:, :10] for output in result.result().outputs]
            narrow = type(result)()
            narrow.set_result(Computed(outputs, 0))
            return narrow

    with Desk(count_up, graphs=Narrow) as desk:
        *_, end = desk.ask([2]).events()
        assert (type(end), end.kind) == (Failed, "ShapeError")


def test_a_sink_that_fails_ends_its_own_request_only(caplog):
    with Desk(count_up, slots=2) as desk:
        bad = desk.ask([2], max_tokens=1000)

        def sink(_event):
            raise RuntimeError("the caller's own")

        bad.sequence.sink = sink
        good = desk.ask([3], max_tokens=30)
        assert good.answer()[1] == counted([3], 30)
        desk.rest()
        assert desk.ask([5], max_tokens=2).answer()[1] == [6, 7]
    assert "the caller's own" in caplog.text


# Looking at every token


def test_a_look_that_fails_hears_why_and_gives_its_cells_back():
    with Desk(count_up, graphs=failing(1)) as desk:
        assert "on fire" in desk.look(range(2, 10)).asked.answer()[2]
        assert desk.look([2, 3]).answer() == [3, 4]
        desk.rest()


def test_a_look_waits_for_sequences_that_hold_its_cells():
    with Desk(count_up, context=16) as desk:
        running = desk.ask([2], max_tokens=14)
        looked = desk.look(range(2, 18))
        assert running.answer()[1] == counted([2], 14)
        assert looked.answer() == [count_up([token]) for token in range(2, 18)]
        desk.rest()


def test_a_look_gives_no_more_results_at_once_than_were_reserved():
    with Desk(count_up) as desk:
        desk.look(range(2, 12)).answer()
        assert [len(step) for step in desk.graphs.steps] == [4, 4, 2]


def test_a_look_can_be_cancelled():
    with Desk(count_up, graphs=HeldGraphs) as desk:
        looked = desk.look(range(2, 12))
        wait_until(lambda: desk.graphs.steps, "a step is under way")
        desk.runner.cancel(looked.asked.sequence)
        for _ in range(2):
            desk.graphs.let_go()
        assert looked.asked.answer()[2] == "cancelled"
        desk.rest()


def test_an_error_in_what_collects_rows_reaches_its_caller():
    def collect(_rows):
        raise ValueError("no room")

    desk = Desk(count_up)
    assert "no room" in desk.ask([2, 3], RowCollector(collect), max_tokens=0).answer()[2]
    desk.runner.close()


# The end of the loop


def test_an_unexpected_error_ends_everything_and_says_why(caplog):
    error = RuntimeError("a mistake of the program")
    desk = Desk(count_up, graphs=HeldGraphs)
    asked = [desk.ask([2 + i], max_tokens=9) for i in range(3)]
    desk.graphs.let_go(error)
    for one in asked:
        *_, end = one.events()
        assert end == Failed("RunnerDiedError", "the runner has ended: a mistake of the program")
    with pytest.raises(RunnerDiedError, match="a mistake of the program"):
        desk.ask([2])
    assert any(record.levelno == logging.ERROR for record in caplog.records)
    desk.runner.close()


def test_a_request_that_comes_while_the_runner_closes_gets_an_end():
    desk = Desk(count_up)
    real = desk.runner._inbox.put
    closer = threading.Thread(target=desk.runner.close)

    class LateInbox:
        """The runner closes between the look whether it runs and the handing over."""

        def put(self, job):
            if job is not None and not closer.is_alive():
                closer.start()
                desk.runner._thread.join(0.2)
            real(job)

        def get(self):
            return inbox.get()

        def empty(self):
            return inbox.empty()

    inbox = desk.runner._inbox
    desk.runner._inbox = LateInbox()
    asked = desk.ask([2], max_tokens=3)
    *_, end = asked.events()
    assert isinstance(end, Failed | Done)
    closer.join()


def test_closing_twice_is_harmless():
    desk = Desk(count_up)
    desk.runner.close()
    desk.runner.close()


def test_closing_waits_for_the_batch_on_the_device():
    desk = Desk(count_up, graphs=HeldGraphs)
    asked = desk.ask([2])
    wait_until(lambda: desk.graphs.steps, "a step is under way")
    closer = threading.Thread(target=desk.runner.close)
    closer.start()
    wait_until(desk.runner._stopped.is_set, "the loop is asked to end")
    closer.join(0.02)
    assert closer.is_alive()
    desk.graphs.let_go()
    desk.graphs.let_go()  # the batch that was planned meanwhile
    closer.join(10)
    assert not closer.is_alive()
    assert "closed" in asked.answer()[2]
