"""The commands of docs/scale.md, from one machine to three; each node is a process here.

What differs from the page: free ports, the address of this machine, and small nodes.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import psutil
import pytest
from support.ray_cluster import free_port
from support.traces import collecting
from support.waiting import wait_until

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"
BIN = Path(sys.executable).parent
NODE = "--block --num-cpus 1 --object-store-memory 80000000"
ADDRESS = "10.0.0.1:6379"
PATIENCE_S = 180.0


def documented(beginning: str) -> str:
    """The only command of the page that begins so."""
    text = PAGE.read_text(encoding="utf-8")
    blocks = "".join(re.findall(r"```console\n(.*?)```", text, re.S))
    inline = re.findall(r"`([^`\n]+)`", text)
    found = [*re.findall(r"^\$ (.*)$", blocks, re.M), *inline]
    [command] = {each for each in found if each.startswith(beginning) and each != beginning}
    return str(command)


def documented_file(beginning: str) -> str:
    """The only file of the page that begins so."""
    found = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    [file] = [each for each in found if each.startswith(beginning)]
    return str(file)


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("c")  # a short path: Ray's sockets are below it


class Machine:
    """Runs commands, all of which have ended when it is closed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: list[subprocess.Popen[bytes]] = []
        told = {"HOME": str(folder), "RAY_TMPDIR": str(folder), "TAMPU_NUM_PARALLEL": "2"}
        path = f"{BIN}:{os.environ['PATH']}"  # noqa: TID251 - for programs
        self.environment = {"PATH": path, "PYTHONWARNINGS": "ignore", **told}

    def start(self, command: str) -> tuple[subprocess.Popen[bytes], Path]:
        """Start a command; return it, and where its output goes."""
        log = self.folder / f"{len(self.running)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                shlex.split(command),
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self.running.append(process)
        return process, log

    def until(self, command: str, told: str) -> subprocess.Popen[bytes]:
        """Start a command, and wait until it has told something."""
        process, log = self.start(command)

        def has_told() -> bool:
            assert process.poll() is None or told in log.read_text(), log.read_text()[-3000:]
            return told in log.read_text()

        wait_until(has_told, f"{command!r} tells {told!r}", PATIENCE_S)
        return process

    def run(self, command: str) -> str:
        """Run a command to its end; return its output."""
        process, log = self.start(command)
        assert process.wait(PATIENCE_S) == 0, log.read_text()[-3000:]
        return log.read_text()

    def close(self) -> None:
        """End what runs, with all processes that it has started."""
        for each in self.running:
            if each.poll() is None:
                family = psutil.Process(each.pid).children(recursive=True)
                each.kill()  # Ray's own way to end takes half a minute
                each.wait()
                for member in family:
                    with suppress(psutil.NoSuchProcess):
                        member.kill()


@contextmanager
def machine(folder: Path) -> Iterator[Machine]:
    found = Machine(folder)
    try:
        yield found
    finally:
        found.close()


@contextmanager
def nodes(here: Machine, count: int, cpus: int = 1, dashboard: int | None = None) -> Iterator[str]:
    """Start so many nodes as the page says; yield their cluster's address.

    `dashboard` is the port of Ray's dashboard; None: there is none.
    """
    port = free_port()
    address = f"127.0.0.1:{port}"
    head = documented("ray start --head").replace("6379", f"{port}")
    given = NODE.replace("cpus 1", f"cpus {cpus}")
    given += (
        " --include-dashboard=false"
        if dashboard is None
        else f" --dashboard-port {dashboard} --dashboard-agent-listen-port {free_port()}"
    )
    here.until(f"{head} --node-ip-address 127.0.0.1 {given}", "--block")
    for _ in range(count - 1):
        join = documented("ray start --address 10").replace(ADDRESS, address)
        here.until(f"{join} --node-ip-address 127.0.0.1 {NODE}", "--block")
    yield address


def check_answers(port: int, model: str = "demo") -> None:
    messages = [{"role": "user", "content": "What is 27 + 58?"}]
    body = {"model": model, "messages": messages, "max_tokens": 50, "temperature": 0}
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    answer = httpx.post(url, json=body, timeout=120).raise_for_status().json()
    assert answer["choices"][0]["message"]["content"] == "85"


def test_one_machine_leads_to_two_replicas(folder: Path) -> None:
    port = free_port()
    with machine(folder) as here:
        running = here.until(f"{documented('tampu ray up')} --port {port}", "Listening on")
        check_answers(port)
        running.send_signal(signal.SIGINT)
        assert running.wait(PATIENCE_S) == 0
        with pytest.raises(httpx.ConnectError):
            check_answers(port)


def test_three_machines_are_joined_and_serve(folder: Path) -> None:
    port = free_port()
    (folder / "cluster.yaml").write_text(f"{documented_file('models:')}port: {port}\n")
    with machine(folder) as here, nodes(here, 3) as address:
        told = here.run(f"{documented('tampu ray deploy')} --address {address}")
        assert "demo: 3 replicas, 0.5 CPUs each" in told
        check_answers(port)
        asked = documented("curl http://127.0.0.1:11434/v1/chat").replace("11434", f"{port}")
        assert json.loads(here.run(f"{asked} --silent"))["choices"][0]["message"]["content"] == "85"
        check_trace(here, port, address)


def check_trace(here: Machine, port: int, address: str) -> None:
    """Check that a trace leads from the client's span to the replica and its batches."""
    asked = documented("curl http://127.0.0.1:11434/api").replace("11434", f"{port}")
    [(trace, client)] = re.findall(r"00-(\w{32})-(\w{16})-01", asked)
    with collecting() as collector:
        deploy = documented("OTEL_").replace("http://127.0.0.1:4318", collector.url)
        here.run(f"env {deploy} --address {address}")
        assert json.loads(here.run(f"{asked} --silent"))["done"]
        wait_until(lambda: any(s.parent == client for s in collector.spans()), "the trace is sent")
        spans = {each.name: each for each in collector.spans()}
    assert {each.trace for each in spans.values()} == {trace}
    request, model = spans["POST /api/chat"], spans["chat demo"]
    assert (request.parent, model.parent) == (client, request.id)
    parts = {name: each.attributes for name, each in spans.items() if each.parent == model.id}
    assert parts.keys() >= {"route", "queue", "prompt", "answer"}
    assert parts["route"]["tampu.replica"]
    assert 0 < parts["prompt"]["tampu.batch.first"] < parts["answer"]["tampu.batch.last"]


def test_rays_own_command_starts_replicas_behind_its_proxy(folder: Path) -> None:
    port = free_port()
    with machine(folder) as here, nodes(here, 1, cpus=3) as address:
        here.run(f"{documented('serve start')} --address {address} --http-port {port}")
        command = f"{documented('serve run')} --address {address}"
        here.until(command, "Application 'default' is ready")
        check_answers(port)


def test_rays_own_command_deploys_from_a_file(folder: Path) -> None:
    port, dashboard = free_port(), free_port()
    file = documented_file("http_options:")
    (folder / "serve.yaml").write_text(file.replace("8000", f"{port}"))
    with machine(folder) as here, nodes(here, 1, cpus=3, dashboard=dashboard):
        address = f"--address http://127.0.0.1:{dashboard}"
        here.run(f"{documented('serve deploy')} {address}")

        def is_running() -> bool:
            told = here.run(f"serve status {address}")
            assert "DEPLOY_FAILED" not in told, told
            return "status: RUNNING" in told

        wait_until(is_running, "the application runs", PATIENCE_S)
        check_answers(port)
