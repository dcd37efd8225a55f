"""The progress of `tampu pull`: bars with rate and time left on a terminal, else lines."""

from __future__ import annotations

import os
import pty
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.local_http import Answer, Request
from support.registries import RogueRegistry, described, manifest, ranged

from tampu.cli import app
from tampu.store.manifests import CONFIG_TYPE

WEIGHTS = random.Random(2).randbytes(6 << 20)
CONFIG = b'{"model_format":"gguf"}'
MANIFEST = manifest([described(WEIGHTS)], described(CONFIG, CONFIG_TYPE))


@pytest.fixture
def registry() -> Iterator[RogueRegistry]:
    with RogueRegistry(MANIFEST, (WEIGHTS, CONFIG)) as registry:
        yield registry


def test_each_step_is_a_line_without_a_terminal(
    registry: RogueRegistry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TAMPU_MODELS", str(tmp_path))
    assert app.run(["pull", "--insecure", f"{registry.host}/a/m"]) == 0
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert captured.out == ""
    assert lines[0] == "pulling manifest"
    assert re.fullmatch(r"pulling [0-9a-f]{12} \(6\.3 MB\)", lines[1])
    assert lines[-3:] == ["verifying sha256 digest", "writing manifest", "success"]


@pytest.mark.server
def test_terminal_shows_bars_with_rate_and_time_left(
    registry: RogueRegistry, tmp_path: Path
) -> None:
    def crawl(request: Request) -> Answer | None:
        if len(request.path) < 60:
            return None
        blob = registry.blobs.get(request.path.rpartition("/")[2])
        answer = ranged(request, blob)
        answer.bytes_per_second = 4 << 20
        return answer

    registry.before = crawl
    ours, theirs = pty.openpty()
    variables = {"TAMPU_MODELS": str(tmp_path), "HOME": str(tmp_path), "COLUMNS": "120"}
    arguments = ["pull", "--insecure", f"{registry.host}/a/m"]
    with subprocess.Popen(
        [sys.executable, "-m", "tampu.cli.entry", *arguments],
        env={"PATH": "/usr/bin:/bin", "TERM": "xterm", **variables},
        stdout=theirs,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # the other side has closed
            while content := os.read(ours, 4096):
                shown += content
        assert process.wait(20) == 0
    os.close(ours)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert re.search(r"pulling [0-9a-f]{12} +\d+%.*/6\.3 MB +\d+\.\d MB/s +\d:\d\d:\d\d", text)
    assert "success" in text
