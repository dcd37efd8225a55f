"""Batches that loading has left are computed while the loop has nothing else to do."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from support.fake_graphs import FakeEngine, FakeGraphs, alone, hashed
from support.waiting import wait_until

from tampu.errors import DeviceLostError, OutOfMemoryError, TampuError
from tampu.kvcache import AttentionGroup, Cells, KVCacheManager
from tampu.runner.graph_cache import WarmUpBatch
from tampu.runner.idle_warm_up import REST_S, IdleWarmUp

LEFT = [WarmUpBatch(1), WarmUpBatch(72), WarmUpBatch(40)]
WARMED = ["1 ahead", "72 ahead", "40 ahead"]
PROMPT = [2, 3, 4, 5]


class WarmedGraphs(FakeGraphs):
    """Notes batches computed ahead of time, each of which ends when it is released."""

    error: TampuError | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.released = threading.Semaphore(0)

    def warm_up(
        self, batches: Sequence[WarmUpBatch], outputs: int, *, cells: Sequence[int]
    ) -> list[float]:
        (batch,) = batches
        assert outputs == 4
        self._memory[list(cells)] = -1
        self.order.append(f"{batch.tokens} ahead")
        assert self.released.acquire(timeout=60)
        if self.error:
            raise self.error
        return [0.0]


def soon() -> Callable[[], float]:
    """A clock that makes the time to rest pass at once."""
    hours = itertools.count(step=3600)
    return lambda: float(next(hours))


def ahead(engine: FakeEngine, count: int) -> None:
    """Wait until so many batches have begun to be computed ahead of time."""
    wait_until(lambda: len(warmed(engine)) == count, f"{count} batches ahead of time")


def warmed(engine: FakeEngine) -> list[str]:
    return [each for each in engine.graphs.order if "ahead" in each]


def test_all_are_computed_once_in_their_order() -> None:
    with FakeEngine(hashed, graphs=WarmedGraphs, left=LEFT, clock=soon()) as engine:
        for count in range(1, 4):
            ahead(engine, count)
            engine.graphs.released.release()
        assert engine.ask(PROMPT, max_tokens=3).answer()[1] == alone(PROMPT, 3)
        engine.wait_until_idle()
        assert warmed(engine) == WARMED


def test_a_request_waits_for_one_of_them_at_most() -> None:
    with FakeEngine(hashed, graphs=WarmedGraphs, left=LEFT, clock=soon()) as engine:
        ahead(engine, 1)
        request = engine.ask(PROMPT, max_tokens=3)
        engine.graphs.released.release()
        assert request.answer()[1] == alone(PROMPT, 3)
        ahead(engine, 2)
        assert engine.graphs.order == ["1 ahead", *["batch"] * 3, "72 ahead"]
        engine.graphs.released.release(2)


def test_they_wait_until_nothing_was_computed_for_a_while() -> None:
    now = [100.0]
    warm_up = IdleWarmUp(Any, KVCacheManager([]), 1, LEFT, lambda: now[0])  # type: ignore[arg-type]
    assert warm_up.seconds == REST_S
    now[0] += 0.75 * REST_S
    assert warm_up.seconds == 0.25 * REST_S
    warm_up.rest()
    assert warm_up.seconds == REST_S
    now[0] += 5
    assert warm_up.seconds == 0


def test_a_step_puts_them_off() -> None:
    times = itertools.chain([0.0], itertools.repeat(-1e6))  # much time is left, but for steps
    with FakeEngine(hashed, graphs=WarmedGraphs, left=LEFT, clock=lambda: next(times)) as engine:
        assert engine.runner._warm_up.seconds > 1e6
        assert engine.ask(PROMPT, max_tokens=3).answer()[1] == alone(PROMPT, 3)
        assert engine.runner._warm_up.seconds == REST_S
        engine.graphs.released.release(3)


def test_rows_in_the_cache_stay_right() -> None:
    with FakeEngine(hashed, graphs=WarmedGraphs, left=LEFT, clock=soon(), context=8) as engine:
        engine.graphs.released.release(3)
        for first in range(2, 12):
            prompt = [first, *PROMPT]
            for _ in range(2):  # again from the cache, which has room for this prompt alone
                assert engine.ask(prompt, max_tokens=3).answer()[1] == alone(prompt, 3)
        ahead(engine, 3)


def test_without_a_cell_to_spare_they_wait() -> None:
    cells = Cells(2)
    manager = KVCacheManager([AttentionGroup(cells)])
    warm_up = IdleWarmUp(Any, manager, 1, LEFT)  # type: ignore[arg-type]
    taken = cells.allocate(2)
    assert warm_up.next() is None
    cells.free(taken[:1])
    assert warm_up.next() == LEFT[0]


def test_a_cell_that_is_overwritten_is_found_no_more() -> None:
    cells = Cells(3)
    cells.free(cells.allocate(3))
    generations = cells.generations.copy()
    spared = cells.spare()
    assert (cells.generations != generations).nonzero()[0].tolist() == [spared]
    assert cells.available == 3


def test_if_one_fails_the_others_are_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(WarmedGraphs, "error", OutOfMemoryError("none is left"))
    with (
        caplog.at_level(logging.WARNING),
        FakeEngine(hashed, graphs=WarmedGraphs, left=LEFT, clock=soon()) as engine,
    ):
        ahead(engine, 1)
        engine.graphs.released.release()
        assert engine.ask(PROMPT, max_tokens=3).answer()[1] == alone(PROMPT, 3)
        assert engine.runner.call(engine.runner._warm_up.next) is None
    assert caplog.messages == ["devices: a batch of 1 tokens ahead of time: none is left"]


def test_if_a_device_is_lost_the_loop_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WarmedGraphs, "error", DeviceLostError("the GPU was lost"))
    with FakeEngine(hashed, graphs=WarmedGraphs, left=LEFT, clock=soon()) as engine:
        ahead(engine, 1)
        request = engine.ask(PROMPT, max_tokens=3)
        engine.graphs.released.release()
        assert "the GPU was lost" in request.answer()[2]


def test_closing_waits_for_one_and_leaves_the_others_out() -> None:
    with FakeEngine(hashed, graphs=WarmedGraphs, left=LEFT, clock=soon()) as engine:
        ahead(engine, 1)
        engine.runner._stopped.set()
        engine.graphs.released.release()
    assert engine.graphs.order == ["1 ahead"]


def test_they_can_be_computed_at_once() -> None:
    with FakeEngine(hashed, graphs=WarmedGraphs, left=LEFT) as engine:
        engine.graphs.released.release(3)
        engine.runner.finish_warm_up()
        assert engine.graphs.order == WARMED
        engine.runner.finish_warm_up()
        assert engine.graphs.order == WARMED


def test_one_that_takes_long_is_told() -> None:
    with FakeEngine(hashed, graphs=WarmedGraphs, left=LEFT, clock=soon()) as engine:
        ahead(engine, 1)
        reason = wait_until(lambda: engine.runner.watchdog.hang_reason(0), "it is told")
        assert reason.startswith("hung: computing 1 tokens")
        engine.graphs.released.release(3)
