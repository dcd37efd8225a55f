"""`tampu batch run`: requests in lines, results in lines, on a server or in the command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.batches import jsonl, line
from support.scripted import write_scripted
from support.serving import start_server

from tampu.cli import app

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"

Run = Callable[..., tuple[int, list[Any], str]]


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    write_scripted(folder / "m.gguf", ["Yes", "."], template=TEMPLATE)
    return folder


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    models: Path,
) -> Run:
    """Run the command; return the exit code, the lines and the errors."""
    monkeypatch.setenv("TAMPU_HOST", "127.0.0.1:1")
    monkeypatch.setenv("TAMPU_MODELS", str(models))
    monkeypatch.setenv("TAMPU_STATE", str(tmp_path / "state"))

    def run(content: bytes, *arguments: str) -> tuple[int, list[Any], str]:
        file = tmp_path / "rows.jsonl"
        file.write_bytes(content)
        code = app.run(["batch", "run", str(file), *arguments])
        captured = capsys.readouterr()
        return code, [json.loads(each) for each in captured.out.splitlines()], captured.err

    return run


ROWS = jsonl([line("b"), line("a", model="nothing"), line("c")])


def check(code: int, lines: list[Any]) -> None:
    assert code == 1  # one has failed
    assert [each["custom_id"] for each in lines] == ["b", "a", "c"]
    assert [each["response"]["status_code"] for each in lines] == [200, 404, 200]
    assert lines[0]["response"]["body"]["choices"][0]["message"]["content"] == "Yes."


def test_requests_are_answered_in_the_command(run: Run, tmp_path: Path) -> None:
    check(*run(ROWS)[:2])
    assert not (tmp_path / "state").exists()  # nothing is left


def test_requests_are_answered_by_a_running_server(
    run: Run, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server(models, tmp_path)
    try:
        monkeypatch.setenv("TAMPU_HOST", server.url.removeprefix("http://"))
        check(*run(ROWS)[:2])
        assert [*(tmp_path / ".local/state/tampu/files").iterdir()] == []
    finally:
        server.end()


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_results_of_a_file_of_windows_are_written_to_a_file(
    run: Run, tmp_path: Path, encoding: str
) -> None:
    rows = jsonl([line("a")]).decode().encode(encoding)
    code, lines, errors = run(rows, "--output", str(tmp_path / "out.jsonl"))
    assert (code, lines) == (0, []), errors
    [found] = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert (found["custom_id"], found["error"]) == ("a", None)


def test_a_broken_line_is_named_and_nothing_is_done(run: Run) -> None:
    code, lines, errors = run(jsonl([line("a")]) + b"{\n{\n")
    assert (code, lines) == (2, [])
    assert "rows.jsonl, line 2: " in errors
    assert "1 more line" in errors
