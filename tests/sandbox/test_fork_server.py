"""The fork server: shared by all sandboxes, restarted when it dies, ended when unused."""

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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.waiting import wait_until

from tampu.engine.load_options import LoadOptions
from tampu.engine.prompts import ChatPrompt
from tampu.engine.requests import Encode
from tampu.errors import SandboxLimitError
from tampu.sandbox.client import ForkServerClient
from tampu.sandbox.process import SandboxedProcess, SandboxLimits
from tampu.store.catalog import resolve
from tampu.worker.client import WorkerProcess
from tampu.worker.start import start_worker

PID = os.getpid()
WORK = "support.sandboxed_work:work"
REAL = (
    "tampu.chat.sandboxed_template:serve",
    "tampu.sampling.grammar_check:serve",
    "tampu.vision.decoding:serve",
)

pytestmark = pytest.mark.server


@pytest.fixture
def own() -> ForkServerClient:
    """Return a client that nothing else in this process uses."""
    return ForkServerClient()


@pytest.fixture
def sandboxes(
    monkeypatch: pytest.MonkeyPatch, own: ForkServerClient
) -> Iterator[list[SandboxedProcess]]:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    made = [SandboxedProcess(WORK, own, SandboxLimits(cpu_s=1.0)) for _ in range(3)]
    yield made
    for sandbox in made:
        sandbox.close()


def fork_server_of(sandbox: SandboxedProcess) -> psutil.Process:
    return psutil.Process(int(sandbox.call(b"fork_server")))


def children(*, but: Sequence[Any] = ()) -> list[Any]:
    """Return the descendants of this process, except some."""
    return [each for each in psutil.Process().children(recursive=True) if each not in but]


def is_fork_server(process: Any) -> bool:
    return "tampu.sandbox.fork_server" in process.cmdline()


def test_fork_server_is_shared_and_ends_with_its_last_user(
    sandboxes: list[SandboxedProcess],
) -> None:
    one, two, three = sandboxes
    fork_server = fork_server_of(one)
    assert fork_server_of(two) == fork_server_of(three) == fork_server
    assert len({sandbox.call(b"pid") for sandbox in sandboxes}) == 3
    assert len(fork_server.children()) == 3
    one.close()
    two.close()
    assert len(fork_server.children()) == 1
    three.close()
    assert not fork_server.is_running()
    assert fork_server_of(one) != fork_server


def test_fork_server_stays_single_threaded_after_imports(
    sandboxes: list[SandboxedProcess], own: ForkServerClient
) -> None:
    fork_server = fork_server_of(sandboxes[0])
    for work in REAL:
        own.request(work)
    made = SandboxedProcess("tampu.sampling.grammar_check:serve", own)
    with pytest.raises(SandboxLimitError):
        made.call(b"")  # all is imported when this comes back
    made.close()
    assert fork_server.num_threads() == 1


@pytest.mark.parametrize("rest", [False, True])
def test_next_call_restarts_a_killed_fork_server(
    sandboxes: list[SandboxedProcess], rest: bool
) -> None:
    for _ in range(3):
        fork_server = fork_server_of(sandboxes[0])
        fork_server.kill()
        if rest:

            def is_gone(process: Any = fork_server) -> bool:
                return not process.is_running()

            wait_until(is_gone, "the fork server is gone")  # and reaped
        assert [sandbox.call(b"abc") for sandbox in sandboxes] == [b"cba"] * 3


def test_task_running_when_fork_server_is_killed_is_run_again(
    sandboxes: list[SandboxedProcess],
) -> None:
    fork_server = fork_server_of(sandboxes[0])
    threading.Timer(0.1, fork_server.kill).start()
    assert sandboxes[0].call(b"pause 0.3") == b"1"


def test_random_kills_change_no_result(sandboxes: list[SandboxedProcess]) -> None:
    """A killed fork server is never noticed; a killed sandbox fails its task or is replaced."""
    generator, over, wrong = random.Random(1), threading.Event(), []
    others = children()

    def use(sandbox: Any) -> None:
        while not over.is_set():
            try:
                if sandbox.call(b"pause 0.001") != b"1":
                    wrong.append("a wrong result")
            except SandboxLimitError as error:
                if "status -9" not in str(error):
                    wrong.append(str(error))

    users = [threading.Thread(target=use, args=(sandbox,)) for sandbox in sandboxes]
    for user in users:
        user.start()
    for turn in range(12):
        time.sleep(0.3 * generator.random())
        fork_servers = [each for each in children(but=others) if each.ppid() == PID]
        victims = fork_servers if turn % 4 == 0 else [c for n in fork_servers for c in n.children()]
        if victims:
            generator.choice(victims).kill()
    over.set()
    for user in users:
        user.join()
    assert wrong == []
    assert len(children(but=others)) <= 4


def test_failed_import_affects_only_its_own_sandbox(
    sandboxes: list[SandboxedProcess], own: ForkServerClient, capfd: pytest.CaptureFixture[str]
) -> None:
    fork_server = fork_server_of(sandboxes[0])
    wrong = SandboxedProcess("support.no_such_module:work", own)
    with pytest.raises(SandboxLimitError, match="ended its process"):
        wrong.call(b"")
    wrong.close()
    assert fork_server_of(sandboxes[1]) == fork_server
    logged = capfd.readouterr().err
    assert "cannot handle" in logged
    assert "ModuleNotFoundError: No module named 'support.no_such_module'" in logged


def test_shared_channel_reaches_the_same_fork_server(
    sandboxes: list[SandboxedProcess], own: ForkServerClient
) -> None:
    fork_server = fork_server_of(sandboxes[0])
    with own.share() as channel:
        other = ForkServerClient()
        other.attach(channel.dup())
        ours, theirs = socket.socketpair()
        lease, its_lease = socket.socketpair()
        with ours, lease:
            with theirs, its_lease:
                other.request(WORK, 1.0, 1 << 26, 30.0, 0, sockets=(theirs, its_lease))
            assert ours.recv(1) == b"!"
            assert len(fork_server.children()) == 2
        wait_until(lambda: len(fork_server.children()) == 1, "the other client's process ends")
        other.release()


def test_client_with_a_closed_channel_starts_its_own_fork_server(
    sandboxes: list[SandboxedProcess], own: ForkServerClient
) -> None:
    fork_server = fork_server_of(sandboxes[0])
    other = ForkServerClient()
    other.attach(own.share())
    fork_server.kill()
    fork_server.wait()
    other.request(WORK)
    other.request(WORK)
    other.release()
    assert fork_server_of(sandboxes[0]) != fork_server


@pytest.mark.parametrize(
    "frame",
    [b"x", b"{" * 512, b"null".ljust(512), b"[]".ljust(512), b'["os:_exit", 1]'.ljust(512)],
)
def test_invalid_request_on_one_channel_affects_no_other(
    sandboxes: list[SandboxedProcess],
    own: ForkServerClient,
    capfd: pytest.CaptureFixture[str],
    frame: bytes,
) -> None:
    fork_server = fork_server_of(sandboxes[0])
    with own.share() as channel:
        channel.sendall(frame)
        channel.shutdown(socket.SHUT_WR)
    assert [fork_server_of(sandbox) for sandbox in sandboxes] == [fork_server] * 3
    capfd.readouterr()


def test_killed_program_leaves_no_processes_behind() -> None:
    program = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from tampu.sandbox.client import ForkServerClient
from tampu.sandbox.process import SandboxedProcess, SandboxLimits
sandbox = SandboxedProcess({WORK!r}, ForkServerClient(), SandboxLimits(cpu_s=60, idle_s=None))
print(sandbox.call(b"fork_server").decode(), sandbox.call(b"pid").decode(), flush=True)
sandbox.call(b"spin")
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        spins = psutil.Process(pids[1])
        wait_until(lambda: sum(spins.cpu_times()[:2]) > 0.05, "the task is running")
        process.send_signal(signal.SIGKILL)
    assert len(pids) == 2
    wait_until(lambda: not any(map(psutil.pid_exists, pids)), "all processes end")


def test_models_of_a_server_share_the_fork_server_until_the_last_is_closed(
    own: ForkServerClient,
) -> None:
    async def load(name: str) -> WorkerProcess:
        options = LoadOptions(vocabulary_only=True)
        environment = {"PYTHONPATH": ":".join(filter(None, sys.path))}
        path = resolve("demo")
        return await start_worker(
            path, options, name=name, environment=environment, fork_server=own
        )

    others = children()

    async def test() -> None:
        workers = [await load("a"), await load("b")]
        for worker in workers:
            await worker.ask(Encode(ChatPrompt(messages=({"role": "user", "content": "hi"},))))
        inside = children(but=others)
        [fork_server] = [each for each in inside if each.ppid() == PID and is_fork_server(each)]
        assert [is_fork_server(each) for each in fork_server.children()] == [True, True]
        assert len(inside) == 5
        await workers[0].close()
        assert len(fork_server.children()) == 1
        await workers[1].close()
        assert not fork_server.is_running()

    asyncio.run(asyncio.wait_for(test(), 30))
