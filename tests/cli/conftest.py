"""Commands that run in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.piped import piped

from tampu.cli import app

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command with nothing piped in; return its exit code, output and errors."""
    monkeypatch.setattr("sys.stdin", piped(""))

    def run(*arguments: object) -> tuple[int, Any, Any]:
        code = app.run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
