"""Work in a jail: answers come back, and what overruns its limits is ended and replaced."""

from __future__ import annotations

import gc
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from support.serving import is_alive
from support.waiting import wait_until

from tampu.errors import OverrunError
from tampu.sandbox.process import Jail, JailLimits

WORK = "support.sandboxed_work:work"
LIMITS = JailLimits(cpu_s=1.0, memory_bytes=64 << 20, answer_bytes=1 << 20)

pytestmark = pytest.mark.server


@pytest.fixture
def jail(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    with_limits = Jail(WORK, LIMITS)
    yield with_limits
    with_limits.close()


def test_work_is_done_by_one_process_after_another_piece(jail):
    assert jail.call(b"abc") == b"cba"
    assert jail.call(b"") == b""
    assert jail.call(b"x" * 500_000) == b"x" * 500_000
    assert jail.call(b"pid") == jail.call(b"pid")


@pytest.mark.parametrize(
    ("order", "cause"),
    [
        (b"spin", "more than 1 s"),
        (b"sleep", "more than 1 s"),
        (b"fill 100000000", "more than 64 MiB"),
        (b"fill 2000000", "more than 1048576 bytes"),
        (b"die", "ended its process"),
        (b"fail", r"it failed: ValueError at jailed_work\.py:\d+$"),
    ],
)
def test_what_overruns_is_ended_and_the_next_call_gets_another_process(jail, order, cause):
    before = jail.call(b"pid")
    with pytest.raises(OverrunError, match=cause):
        jail.call(order)  # would go on for ever if nobody ended it
    assert not psutil.pid_exists(int(before))
    assert jail.call(b"abc") == b"cba"


def test_several_threads_share_it(jail):
    with ThreadPoolExecutor(4) as threads:
        requests = [str(number).encode() for number in range(100, 140)]
        assert list(threads.map(jail.call, requests)) == [text[::-1] for text in requests]


def test_it_sees_nothing_of_the_environment(jail, monkeypatch):
    monkeypatch.setenv("SECRET", "1")
    assert b"SECRET" not in jail.call(b"environment")


def test_its_process_ends_with_it(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    jail = Jail(WORK, LIMITS)
    jail.start()
    pid = int(jail.call(b"pid"))
    del jail
    gc.collect()
    assert not psutil.pid_exists(pid)


def test_a_process_that_nobody_asks_ends_and_is_forked_again(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    jail = Jail(WORK, JailLimits(idle_s=0.1))
    before, nursery = int(jail.call(b"pid")), jail.call(b"nursery")
    wait_until(lambda: not psutil.pid_exists(before), "the process that nobody asks ends")
    assert psutil.Process(int(nursery)).children() == []
    assert int(jail.call(b"pid")) != before
    assert jail.call(b"nursery") == nursery
    for pause in range(20):  # some of these meet a process that is just ending
        time.sleep(0.095 + 0.0005 * pause)
        assert jail.call(b"abc") == b"cba"
    jail.close()


@pytest.mark.parametrize(
    "deed", ["connect", "socketpair", "run", "fork", "signal", "write", "look", "list"]
)
def test_nothing_can_be_reached_from_it(jail, deed):
    assert jail.call(deed.encode()) in {b"Operation not permitted", b"Permission denied"}


def test_it_has_its_socket_and_no_other_file_and_may_have_threads(jail):
    assert jail.call(b"open") == b"[0, 1, 2]"
    assert jail.call(b"thread") == b"done"


def test_a_process_that_died_while_idle_is_replaced(jail):
    process = psutil.Process(int(jail.call(b"pid")))
    process.kill()
    wait_until(lambda: not is_alive(process), "the process ends")
    assert jail.call(b"abc") == b"cba"


def test_work_that_cannot_start_is_an_error(capfd):
    jail = Jail("support.no_such_module:work", LIMITS)
    with pytest.raises(OverrunError, match="ended its process"):
        jail.call(b"")
    jail.close()
    capfd.readouterr()
