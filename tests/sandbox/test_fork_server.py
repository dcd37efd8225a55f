"""The process that jails come from: one for all, replaced when it dies, gone when not needed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from support.waiting import wait_until

from tampu.errors import OverrunError
from tampu.sandbox.process import Jail, JailLimits, Nursery
from tampu.store.catalog import resolve
from tampu.worker.client import start_worker
from tampu.worker.protocol import ChatPrompt, ModelOptions

PID = os.getpid()
WORK = "support.sandboxed_work:work"
REAL = (
    "tampu.chat.sandboxed_template:serve",
    "tampu.sampling.grammar_check:serve",
    "tampu.vision.sandboxed:serve",
)

pytestmark = pytest.mark.server


@pytest.fixture(autouse=True)
def own(monkeypatch):
    """One that nothing else in this process uses."""
    own = Nursery()
    for module in ("tampu.sandbox.process", "tampu.worker.client"):
        monkeypatch.setattr(f"{module}.NURSERY", own)
    return own


@pytest.fixture
def jails(monkeypatch, own):  # noqa: ARG001 - the nursery first
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    made = [Jail(WORK, JailLimits(cpu_s=1.0)) for _ in range(3)]
    yield made
    for jail in made:
        jail.close()


def nursery_of(jail):
    return psutil.Process(int(jail.call(b"nursery")))


def children(*, but=()):
    """Return the processes that come from this one, but for some."""
    return [each for each in psutil.Process().children(recursive=True) if each not in but]


def is_nursery(process):
    return "tampu.sandbox.fork_server" in process.cmdline()


def test_jails_share_it_and_it_ends_with_the_last(jails):
    one, two, three = jails
    nursery = nursery_of(one)
    assert nursery_of(two) == nursery_of(three) == nursery
    assert len({jail.call(b"pid") for jail in jails}) == 3
    assert len(nursery.children()) == 3
    one.close()
    two.close()
    assert len(nursery.children()) == 1
    three.close()
    assert not nursery.is_running()
    assert nursery_of(one) != nursery


def test_it_has_one_thread_whatever_it_has_imported(jails, own):
    nursery = nursery_of(jails[0])
    for work in REAL:
        own.order(work)
    made = Jail("tampu.sampling.grammar_check:serve")
    with pytest.raises(OverrunError):
        made.call(b"")  # all is imported when this comes back
    made.close()
    assert nursery.num_threads() == 1


@pytest.mark.parametrize("rest", [False, True])
def test_when_it_is_killed_the_next_call_starts_another(jails, rest):
    for _ in range(3):
        nursery = nursery_of(jails[0])
        nursery.kill()
        if rest:
            wait_until(
                lambda gone=nursery: not gone.is_running(), "it is gone"
            )  # not even as a zombie
        assert [jail.call(b"abc") for jail in jails] == [b"cba"] * 3


def test_work_under_way_when_it_is_killed_is_done_again(jails):
    nursery = nursery_of(jails[0])
    threading.Timer(0.1, nursery.kill).start()
    assert jails[0].call(b"pause 0.3") == b"1"


def test_kills_at_random_times_change_no_answer(jails):
    """The nursery's death is never seen; that of the work's own process is told, or not seen."""
    generator, over, wrong = random.Random(1), threading.Event(), []
    others = children()

    def use(jail):
        while not over.is_set():
            try:
                if jail.call(b"pause 0.001") != b"1":
                    wrong.append("an answer")
            except OverrunError as error:
                if "status -9" not in str(error):
                    wrong.append(str(error))

    users = [threading.Thread(target=use, args=(jail,)) for jail in jails]
    for user in users:
        user.start()
    for turn in range(12):
        time.sleep(0.3 * generator.random())
        nurseries = [each for each in children(but=others) if each.ppid() == PID]
        victims = nurseries if turn % 4 == 0 else [c for n in nurseries for c in n.children()]
        if victims:
            generator.choice(victims).kill()
    over.set()
    for user in users:
        user.join()
    assert wrong == []
    assert len(children(but=others)) <= 4


def test_work_that_cannot_be_imported_ends_nothing_else(jails, capfd):
    nursery = nursery_of(jails[0])
    wrong = Jail("support.no_such_module:work")
    with pytest.raises(OverrunError, match="ended its process"):
        wrong.call(b"")
    wrong.close()
    assert nursery_of(jails[1]) == nursery
    assert "no_such_module" in capfd.readouterr().err


def test_a_lent_channel_orders_from_the_same_one(jails, own):
    nursery = nursery_of(jails[0])
    with own.lend() as channel:
        other = Nursery()
        other.adopt(channel.dup())
        ours, theirs = socket.socketpair()
        lease, its_lease = socket.socketpair()
        with ours, lease:
            with theirs, its_lease:
                other.order(WORK, 1.0, 1 << 26, 30.0, sockets=(theirs, its_lease))
            assert ours.recv(1) == b"!"
            assert len(nursery.children()) == 2
        wait_until(lambda: len(nursery.children()) == 1, "the other's process ends")
        other.leave()


def test_one_whose_channel_ends_gets_its_own(jails, own):
    nursery = nursery_of(jails[0])
    other = Nursery()
    other.adopt(own.lend())
    nursery.kill()
    nursery.wait()
    other.order(WORK)
    other.order(WORK)
    other.leave()
    assert nursery_of(jails[0]) != nursery


@pytest.mark.parametrize(
    "frame",
    [b"x", b"{" * 512, b"null".ljust(512), b"[]".ljust(512), b'["os:_exit", 1]'.ljust(512)],
)
def test_nonsense_on_one_channel_disturbs_no_other(jails, own, capfd, frame):
    nursery = nursery_of(jails[0])
    with own.lend() as channel:
        channel.sendall(frame)
        channel.shutdown(socket.SHUT_WR)
    assert [nursery_of(jail) for jail in jails] == [nursery] * 3
    capfd.readouterr()


def test_nothing_outlives_a_program_that_is_killed():
    program = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from tampu.sandbox.process import Jail, JailLimits
jail = Jail({WORK!r}, JailLimits(cpu_s=60, idle_s=None))
print(jail.call(b"nursery").decode(), jail.call(b"pid").decode(), flush=True)
jail.call(b"spin")
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        spins = psutil.Process(pids[1])
        wait_until(lambda: sum(spins.cpu_times()[:2]) > 0.05, "the work is under way")
        process.send_signal(signal.SIGKILL)
    assert len(pids) == 2
    wait_until(lambda: not any(map(psutil.pid_exists, pids)), "all of it ends")


def test_the_models_of_a_server_share_it_and_it_ends_with_the_last():
    async def load(name):
        options = ModelOptions(vocabulary_only=True)
        environment = {"PYTHONPATH": ":".join(filter(None, sys.path))}
        return await start_worker(resolve("demo"), options, name=name, environment=environment)

    others = children()

    async def test():
        workers = [await load("a"), await load("b")]
        for worker in workers:
            await worker.encode(ChatPrompt(messages=({"role": "user", "content": "hi"},)))
        inside = children(but=others)
        [nursery] = [each for each in inside if each.ppid() == PID and is_nursery(each)]
        assert [is_nursery(each) for each in nursery.children()] == [True, True]
        assert len(inside) == 5
        await workers[0].close()
        assert len(nursery.children()) == 1
        await workers[1].close()
        assert not nursery.is_running()

    asyncio.run(asyncio.wait_for(test(), 30))
