"""llama-server's own tests, unmodified, with `tampu serve` in the place of llama-server.

`make llama-server-test` fetches them. A test that is not in `expected.toml` must pass; one that is
there must fail, so that the list says what holds. Files that it leaves out are not run.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TESTS = Path(sys.prefix) / "llama-server" / "tests"
PYTHON = Path(sys.prefix) / "llama-server" / "environment" / "bin" / "python"
LAUNCHER = ROOT / "tests" / "llama_server" / "launcher.py"
LISTED = tomllib.loads((LAUNCHER.parent / "expected.toml").read_text(encoding="utf-8"))
PAGE = ROOT / "docs" / "moving.md"
SECONDS = 120  # of one of its tests, without what prepares all of them
FIGURES = re.compile(
    r"(\d+) of the (\d+) tests that are run pass, "
    r"and (\d+) of the (\d+) among\s+them that do not need"
)


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
    return port


def run_tests(folder: Path) -> dict[str, str]:
    """Return the outcome of each test by its name."""
    program = folder / "llama-server"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{LAUNCHER}" "$@"\n')
    program.chmod(0o700)
    found = folder / "outcomes.json"
    files = sorted(TESTS.glob("unit/test_*.py"))
    chosen = [f"unit/{file.name}" for file in files if file.name not in LISTED["left_out"]]
    command = [
        PYTHON, "-m", "pytest", "-q", "-p", "outcomes", "--outcomes", found, "-m", "not slow",
        "--timeout", SECONDS, "-o", "timeout_func_only=true", *chosen,
    ]  # fmt: skip
    environment = {
        "PATH": os.defpath,
        "HOME": str(folder),
        "PYTHONPATH": str(LAUNCHER.parent),
        "LLAMA_SERVER_BIN_PATH": str(program),
        "PORT": str(free_port()),
        # What they would fetch from elsewhere; this machine is reached without a proxy.
        "HTTPS_PROXY": "http://127.0.0.1:1",
        "NO_PROXY": "127.0.0.1,::1,localhost",
    }
    done = subprocess.run(
        [*map(str, command)], cwd=TESTS, env=environment, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.exists(), done.stdout[-4000:] + done.stderr[-4000:]
    outcomes: dict[str, str] = json.loads(found.read_text())
    return outcomes


def expected_failures() -> set[str]:
    """Return the names that the list has; each is in one group."""
    groups: list[dict[str, Any]] = LISTED["group"]
    names = [name for group in groups for name in group["tests"]]
    assert len(names) == len({*names}), "a test is listed twice"
    assert all(group["reason"] for group in groups)
    return {*names}


@pytest.mark.timeout(0)
def test_what_passes_is_what_the_list_says(tmp_path: Path) -> None:
    outcomes = run_tests(tmp_path)
    failed = {name for name, outcome in outcomes.items() if outcome == "failed"}
    passed = {name for name, outcome in outcomes.items() if outcome == "passed"}
    listed = expected_failures()
    assert sorted(failed - listed) == [], "these must pass, and failed"
    assert sorted(listed & passed) == [], "these are expected to fail, and passed"
    assert sorted(listed - failed) == [], "these are listed, and there is no such test"
    told = FIGURES.search(PAGE.read_text(encoding="utf-8"))
    assert told is not None
    total = len(passed) + len(failed)
    without = total - sum(
        len(group["tests"]) for group in LISTED["group"] if group.get("needs_its_model")
    )
    assert [*map(int, told.groups())] == [len(passed), total, len(passed), without]
