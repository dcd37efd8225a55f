"""A server in a process of its own, as a user starts it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest
from support.hidden import HIDDEN
from support.waiting import PATIENCE_S

from tampu.settings.settings import variable

START_S = PATIENCE_S
STOP_S = PATIENCE_S
WORKER = "tampu.worker.entry"


@dataclass(frozen=True)
class Server:
    """Where it listens, and its process."""

    url: str
    process: subprocess.Popen[str]
    log: Path

    def workers(self) -> list[psutil.Process]:
        """Return the processes of its models that run; sandboxes come from another one."""
        children = psutil.Process(self.process.pid).children()
        return [child for child in children if is_alive(child) and WORKER in command_of(child)]

    def end(self) -> None:
        """End it whatever it does, if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ask it to end; return its exit code."""
        self.process.send_signal(number)
        return self.process.wait(STOP_S)


def command_of(process: psutil.Process) -> list[str]:
    """Return what a process was started with; nothing if it has ended."""
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


def is_alive(process: psutil.Process) -> bool:
    """Whether a process runs; one that has ended may still wait for its parent to look."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def start_server(models: Path, folder: Path, *options: str, **environment: str) -> Server:
    """Start a server on a free port, with more options and variables; wait until it answers."""
    log = folder / "server.log"
    command = [sys.executable, "-m", "tampu.cli.entry", "serve", "--port", "0", "--models"]
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, models, *options],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={
                "PATH": os.defpath,
                "HOME": str(folder),
                "TAMPU_SPEC_TYPE": "none",  # whether drafts win depends on measured times
                **_packages(),
                **HIDDEN,
                **environment,
            },
            text=True,
        )
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        found = re.search(r"Listening on (https?://\S+|unix:\S+)", log.read_text())
        if found and _answers(found[1]):
            return Server(found[1], process, log)
        time.sleep(0.05)
    process.kill()
    process.wait()
    pytest.fail(f"the server did not start: {log.read_text()}")


def _packages() -> dict[str, str]:
    """Return the variable that says where packages are, if it is set."""
    return {"PYTHONPATH": given} if (given := variable("PYTHONPATH")) else {}


def _answers(url: str) -> bool:
    path = url.removeprefix("unix:") if url.startswith("unix:") else None
    transport = httpx.HTTPTransport(uds=path, verify=False)
    try:
        with httpx.Client(transport=transport, timeout=1) as client:
            return client.get("http://localhost" if path else url).status_code == 200
    except httpx.TransportError:
        return False
