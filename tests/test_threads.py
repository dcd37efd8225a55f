"""Threads: what executors do, and the end of a program while others of its threads run."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from tampu.threads import ProgramEndedError, Threads


@pytest.fixture
def threads() -> Iterator[Threads]:
    made = Threads(1, "test")
    yield made
    made.shutdown()


def test_functions_run_in_order_on_a_thread_of_this_name(threads: Threads) -> None:
    seen: list[int] = []
    for number in range(50):
        threads.submit(seen.append, number)
    assert threads.submit(lambda: threading.current_thread().name).result() == "test_0"
    assert seen == [*range(50)]
    assert [*threads.map(divmod, [7, 9], [2, 4])] == [(3, 1), (2, 1)]


def test_an_error_is_raised_where_the_result_is_wanted(threads: Threads) -> None:
    with pytest.raises(ZeroDivisionError):
        threads.submit(divmod, 1, 0).result()
    assert threads.submit(divmod, 1, 1).result() == (1, 0)


def test_as_many_run_at_once_as_there_are_threads() -> None:
    barrier = threading.Barrier(3)
    begun: list[str] = []
    with Threads(3, "test", lambda: begun.append(threading.current_thread().name)) as threads:
        found = [threads.submit(barrier.wait) for _ in range(3)]
        assert {each.result() for each in found} == {0, 1, 2}
    assert sorted(begun) == ["test_0", "test_1", "test_2"]


def test_shutdown_runs_what_was_submitted_or_cancels_it() -> None:
    for cancels in (False, True):
        threads, entered, free = Threads(1, "test"), threading.Event(), threading.Event()
        threads.submit(entered.set)
        first, second = threads.submit(free.wait), threads.submit(int)
        assert entered.wait(60)
        threads.shutdown(wait=False, cancel_futures=cancels)
        free.set()
        threads.shutdown()
        assert first.cancelled() or first.result()
        assert second.cancelled() == cancels
        with pytest.raises(RuntimeError, match="shut down"):
            threads.submit(int)


def test_threads_end_when_no_one_can_give_them_work() -> None:
    threads = Threads(2, "lost")
    threads.submit(int).result()
    threads.submit(int).result()
    running = [each for each in threading.enumerate() if each.name.startswith("lost_")]
    assert len(running) == 2
    del threads
    gc.collect()
    for each in running:
        each.join(60)
        assert not each.is_alive()


def test_at_the_end_of_the_program_work_is_done_and_none_is_begun() -> None:
    threads = Threads(1, "test")
    done = threads.submit(int)
    threads.end_program()
    assert done.done()
    with pytest.raises(ProgramEndedError):
        threads.submit(int)
    threads.shutdown()


PROGRAM = """
import atexit, threading
from tampu import Engine, TampuError
atexit.register(lambda: (engine.close(), print("closed")))
engine = Engine.load("demo", threads=1)
begun = threading.Event()
def go():
    try:
        for event in engine.stream("x", max_tokens=LIMIT, ignore_eos=True):
            begun.set()
    except TampuError:  # the engine was closed meanwhile
        return
    print(event.reason)
    engine.MORE
atexit.register(lambda: print("end"))
threading.Thread(target=go, daemon=IS_DAEMON).start()
begun.wait()
"""


@pytest.mark.parametrize(
    ("is_daemon", "limit", "more", "printed"),
    [
        (False, 300, "close()", "length\nend\nclosed\n"),
        (False, 300, "slots", "length\nend\nclosed\n"),  # never closed
        (True, 100_000, "close()", "end\nclosed\n"),
    ],
)
def test_a_thread_generates_to_the_end_after_the_main_thread_has_ended(
    is_daemon: bool, limit: int, more: str, printed: str
) -> None:
    values = {"IS_DAEMON": str(is_daemon), "LIMIT": str(limit), "MORE": more}
    program = PROGRAM
    for name, value in values.items():
        program = program.replace(name, value)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")


def test_a_model_is_loaded_after_the_main_thread_has_ended() -> None:
    program = """
import threading
from tampu import Engine
def go():
    threading.main_thread().join()
    with Engine.load("demo", threads=1) as engine:
        print(engine.generate("x", max_tokens=3, ignore_eos=True).reason)
threading.Thread(target=go).start()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "length\n", "")
