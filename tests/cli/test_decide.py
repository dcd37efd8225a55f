"""`tampu decide`: questions in a file, inputs in lines, answers in lines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.piped import piped
from support.scripted import write_scripted

from tampu.cli import app

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
QUESTIONS = [
    {"type": "choice", "name": "c", "instructions": "Which?",
     "choices": [{"value": "No"}, {"value": "Yes"}]}
]  # fmt: skip

Run = Callable[..., tuple[int, list[Any], str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run the command without a server; return the exit code, the lines and the errors."""
    monkeypatch.setenv("TAMPU_HOST", "127.0.0.1:1")
    monkeypatch.setenv("TAMPU_MODELS", str(tmp_path / "models"))
    model = write_scripted(tmp_path / "m.gguf", ["Yes", "."], template=TEMPLATE)
    questions = tmp_path / "questions.json"
    questions.write_text(json.dumps(QUESTIONS))

    def run(lines: str, *arguments: str | Path) -> tuple[int, list[Any], str]:
        monkeypatch.setattr("sys.stdin", piped(lines))
        given = map(str, arguments or ("--questions", questions))
        code = app.run(["decide", str(model), *given])
        captured = capsys.readouterr()
        return code, [json.loads(line) for line in captured.out.splitlines()], captured.err

    return run


def test_each_line_is_answered(run: Run) -> None:
    code, lines, _ = run('"one"\n{"id": 7, "input": "two"}\n\n\n')
    assert code == 0
    assert [line["answers"][0]["choice"] for line in lines] == ["Yes", "Yes"]
    assert [line.get("id") for line in lines] == [None, 7]
    assert lines[0]["usage"]["input_tokens"] > 10


def test_a_line_may_have_its_own_questions(run: Run, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"input": "x", "questions": [*QUESTIONS, *QUESTIONS]}))
    code, [line], _ = run("", "--input", rows)
    assert code == 0
    assert len(line["answers"]) == 2


def test_an_empty_line_has_a_line_of_output_too(run: Run) -> None:
    code, lines, _ = run('"one"\n\n  \n"two"\n')
    assert code == 1
    assert ["error" in line for line in lines] == [False, True, True, False]
    assert lines[2]["error"] == "standard input, line 3 is empty"


def test_an_input_that_fails_does_not_end_the_others(run: Run) -> None:
    code, lines, _ = run('{"id": 1, "input": []}\n{"id": 2, "input": 5}\n{"id": 3, "input": "x"}\n')
    assert code == 1
    assert [line["id"] for line in lines] == [1, 2, 3]
    assert "input" in lines[0]["error"]
    assert "input" in lines[1]["error"]
    assert lines[2]["answers"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "standard input, line 1: invalid JSON"),
        ('{"x": 1}', "standard input, line 1: input is missing"),
        ('{"input": null}', "standard input, line 1: input is missing"),
        ('{"input": 5}', "standard input, line 1: input"),
        ('{"input": "x", "questions": []}', "standard input, line 1: questions: 1 to 400"),
    ],
)
def test_a_broken_line_is_named(run: Run, line: str, message: str) -> None:
    code, [broken], _ = run(line)
    assert code == 1
    assert message in broken["error"]


def test_the_lines_after_a_broken_one_are_answered(run: Run) -> None:
    code, lines, _ = run('"a"\nnot JSON\n{"id": 3}\n"b"\n')
    assert code == 1
    assert ["error" in line for line in lines] == [False, True, True, False]
    assert "line 2" in lines[1]["error"]
    assert lines[2]["id"] == 3


def test_missing_and_broken_questions_are_named(run: Run, tmp_path: Path) -> None:
    code, [line], _ = run('"x"', "--input", "-")
    assert code == 1
    assert "line 1: questions is missing" in line["error"]
    path = tmp_path / "wrong.json"
    for text, message in (
        ("{}", "must have a JSON list"), ("[", "invalid JSON"), ("[]", "questions: 1 to 400")
    ):  # fmt: skip
        path.write_text(text)
        code, _, errors = run('"x"', "--questions", path)
        assert code == 2
        assert message in errors
    assert run('"x"', "--questions", tmp_path / "nothing")[0] == 2
