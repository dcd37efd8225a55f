"""Sandboxed processes: results, limits, and replacement after one is killed."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from support.fork_server import FORK_SERVER
from support.waiting import PATIENCE_S, wait_until

from tampu.cancellation import cancellable
from tampu.errors import RequestCancelledError, SandboxLimitError
from tampu.sandbox.process import SandboxedProcess, SandboxLimits, _Child

WORK = "support.sandboxed_work:work"
LIMITS = SandboxLimits(cpu_s=1.0, memory_bytes=64 << 20, result_bytes=1 << 20)

pytestmark = pytest.mark.server


@pytest.fixture
def sandbox(monkeypatch: pytest.MonkeyPatch) -> Iterator[SandboxedProcess]:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    process = SandboxedProcess(WORK, FORK_SERVER, LIMITS)
    yield process
    process.close()


def test_one_process_runs_all_tasks(sandbox: SandboxedProcess) -> None:
    assert sandbox.call(b"abc") == b"cba"
    assert sandbox.call(b"") == b""
    assert sandbox.call(b"x" * 500_000) == b"x" * 500_000
    assert sandbox.call(b"pid") == sandbox.call(b"pid")


def test_cancelled_call_ends_the_process_and_leaves_the_next_one_alone(
    sandbox: SandboxedProcess,
) -> None:
    before = int(sandbox.call(b"pid"))
    asked: list[None] = []

    def is_cancelled() -> bool:
        asked.append(None)
        return len(asked) > 1  # not before the task has begun

    with cancellable(is_cancelled), pytest.raises(RequestCancelledError):
        sandbox.call(b"spin")
    assert not psutil.pid_exists(before)
    assert sandbox.call(b"abc") == b"cba"


def test_call_that_waits_for_another_can_be_cancelled(sandbox: SandboxedProcess) -> None:
    asked = threading.Event()

    def waits() -> None:
        with cancellable(lambda: asked.set() is None), pytest.raises(RequestCancelledError):
            sandbox.call(b"abc")

    with sandbox._turn(), ThreadPoolExecutor(1) as pool:
        pool.submit(waits).result(PATIENCE_S)
    assert asked.is_set()


def test_calls_take_turns_in_the_order_in_which_they_came(sandbox: SandboxedProcess) -> None:
    order: list[int] = []

    def take(number: int) -> None:
        with sandbox._turn():
            order.append(number)

    with ThreadPoolExecutor(3) as pool, sandbox._turn():
        for number in range(3):
            pool.submit(take, number)
            # One turn is this thread's.
            wait_until(lambda: len(sandbox._turns) > number + 1, "the call waits")  # noqa: B023
        assert order == []
    assert order == [0, 1, 2]


@pytest.mark.parametrize(
    ("task", "cause"),
    [
        (b"spin", "more than 1 s"),
        (b"fill 100000000", "more than 64 MiB"),
        (b"fill 2000000", "more than 1048576 bytes"),
        (b"die", "ended its process"),
        (b"fail", r"it failed: ValueError at sandboxed_work\.py:\d+$"),
    ],
)
def test_task_over_its_limits_is_killed_and_the_process_replaced(
    sandbox: SandboxedProcess, task: bytes, cause: str
) -> None:
    before = sandbox.call(b"pid")
    with pytest.raises(SandboxLimitError, match=cause):
        sandbox.call(task)
    assert not psutil.pid_exists(int(before))
    assert sandbox.call(b"abc") == b"cba"


def test_a_task_that_does_not_compute_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    sandbox = SandboxedProcess(WORK, FORK_SERVER, replace(LIMITS, wall_s=1.0))
    sandbox.start()
    before = sandbox.call(b"pid")
    with pytest.raises(SandboxLimitError, match="it is stuck for 1 s"):
        sandbox.call(b"sleep")
    assert not psutil.pid_exists(int(before))
    sandbox.close()


def test_several_threads_may_call_it(sandbox: SandboxedProcess) -> None:
    with ThreadPoolExecutor(4) as threads:
        requests = [str(number).encode() for number in range(100, 140)]
        assert list(threads.map(sandbox.call, requests)) == [text[::-1] for text in requests]


def test_environment_is_hidden_from_it(
    sandbox: SandboxedProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "1")
    assert b"SECRET" not in sandbox.call(b"environment")


def test_garbage_collection_ends_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    sandbox = SandboxedProcess(WORK, FORK_SERVER, LIMITS)
    sandbox.start()
    pid = int(sandbox.call(b"pid"))
    del sandbox
    gc.collect()
    assert not psutil.pid_exists(pid)


def test_idle_process_exits_and_is_forked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    sandbox = SandboxedProcess(WORK, FORK_SERVER, SandboxLimits(idle_s=0.1))
    before, fork_server = int(sandbox.call(b"pid")), sandbox.call(b"fork_server")
    wait_until(lambda: not psutil.pid_exists(before), "the idle process exits")
    assert psutil.Process(int(fork_server)).children() == []
    assert int(sandbox.call(b"pid")) != before
    assert sandbox.call(b"fork_server") == fork_server
    for pause in range(20):  # some of these calls meet a process that is just exiting
        time.sleep(0.095 + 0.0005 * pause)
        assert sandbox.call(b"abc") == b"cba"
    sandbox.close()


@pytest.mark.parametrize(
    "deed", ["connect", "socketpair", "run", "fork", "signal", "write", "look", "list"]
)
def test_sockets_processes_and_files_are_forbidden(sandbox: SandboxedProcess, deed: str) -> None:
    assert sandbox.call(deed.encode()) in {b"Operation not permitted", b"Permission denied"}


def test_it_has_only_its_socket_open_and_may_start_threads(sandbox: SandboxedProcess) -> None:
    assert sandbox.call(b"open") == b"[0, 1, 2]"
    assert sandbox.call(b"thread") == b"done"


def test_process_that_died_while_idle_is_replaced(sandbox: SandboxedProcess) -> None:
    process = psutil.Process(int(sandbox.call(b"pid")))
    process.kill()
    wait_until(lambda: not psutil.pid_exists(process.pid), "the fork server reaps the process")
    assert sandbox.call(b"abc") == b"cba"


def test_process_whose_end_is_not_reported_yet_is_replaced(
    sandbox: SandboxedProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = psutil.Process(int(sandbox.call(b"pid")))
    process.kill()
    wait_until(lambda: not psutil.pid_exists(process.pid), "the fork server reaps the process")
    reported = _Child.status
    late = lambda child, seconds: reported(child, seconds) if seconds else None  # noqa: E731
    monkeypatch.setattr(_Child, "status", late)
    assert sandbox.call(b"abc") == b"cba"


def test_function_that_cannot_be_imported_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    sandbox = SandboxedProcess("support.no_such_module:work", FORK_SERVER, LIMITS)
    with pytest.raises(SandboxLimitError, match="ended its process"):
        sandbox.call(b"")
    sandbox.close()
    capfd.readouterr()
