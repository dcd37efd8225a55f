"""Names and arguments that are not UTF-8: names of files keep their bytes, texts get U+FFFD."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.scripted import write_scripted

pytestmark = pytest.mark.slow

NAME = b"x\xe9.gguf"
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_scripted(folder / os.fsdecode(NAME), ["Hello", "."], template=TEMPLATE)
    (folder / "Modelfile").write_bytes(b"FROM x.gguf\n")
    return folder


def run(folder: Path, *arguments: str | bytes, piped: bytes = b"") -> tuple[int, bytes, str]:
    """Run a command in a strict terminal; return its exit code, output and errors."""
    done = subprocess.run(
        [sys.executable, "-m", "tampu.cli.entry", *arguments],
        cwd=folder,
        env={
            "HOME": str(folder),
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "PYTHONIOENCODING": "utf-8:strict",
            "TAMPU_HOST": "127.0.0.1:1",
            "TAMPU_THREADS": "1",
        },
        input=piped,
        capture_output=True,
        timeout=300,
    )
    return done.returncode, done.stdout, done.stderr.decode()


def test_a_model_whose_name_is_not_utf8_answers(folder: Path) -> None:
    code, said, errors = run(
        folder,
        "run",
        b"./" + NAME,
        b"caf\xe9",
        "--system",
        b"\xe9",
        "-o",
        b"stop=\xe9",
        piped=b"\xff\n",
    )
    assert (code, said, errors) == (0, b"Hello.\n", "")


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["show", b"./" + NAME, "--modelfile"], b"FROM " + NAME),
        (["show", b"./" + NAME, "--json"], '"path": "x\ufffd.gguf"'.encode()),
        (["quantize", b"./" + NAME, b"\xe9.gguf", "Q8_0"], b"\xe9.gguf: "),
    ],
    ids=["modelfile", "JSON", "quantize"],
)
def test_its_name_keeps_its_bytes(folder: Path, arguments: list[str | bytes], shown: bytes) -> None:
    code, said, errors = run(folder, *arguments)
    assert (code, errors) == (0, "")
    assert shown in said


def test_lines_of_inputs_are_answered_one_by_one(folder: Path) -> None:
    questions = [{"type": "predicate", "instructions": "Is it?"}]
    (folder / "q.json").write_text(json.dumps(questions))
    inputs = b'{"input": "a\\ud83d", "id": "\\ud83d"}\n"caf\xe9"\n'
    code, said, errors = run(folder, "decide", b"./" + NAME, "-q", "q.json", piped=inputs)
    first, second = map(json.loads, said.splitlines())
    assert (code, errors, first["id"]) == (1, "", "\ufffd")
    assert first["answers"]
    assert second == {"error": "standard input, line 2 is not valid UTF-8"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", b"none\xe9", "hi"], ["show", b"none\xe9"], ["rm", b"none\xe9"],
        ["cp", b"none\xe9", b"other\xe9"], ["import", b"none\xe9"],
        ["create", b"none\xe9", "-f", b"none\xe9"], ["run", "demo", "hi", "--format", b"none\xe9"],
        [b"none\xe9"],
    ],
    ids=lambda each: str(each),
)  # fmt: skip
def test_an_unknown_name_is_one_line(folder: Path, arguments: list[str | bytes]) -> None:
    code, said, errors = run(folder, *arguments)
    assert (code, said) == (2, b"")
    assert errors.startswith("Error: ")
    assert errors.count("\n") == 1
    assert "Traceback" not in errors
