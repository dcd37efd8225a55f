"""`tampu steer make` writes the vector that the function returns, and names wrong files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tampu.engine.control_vector import ControlVector
from tampu.engine.engine import Engine
from tests.cli.conftest import Run

POSITIVE = ["What is 45 + 46?", "What is 50 + 44?"]
NEGATIVE = ["What is 30 + 31?", "What is 25 + 37?"]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    names = tmp_path / "positive.txt", tmp_path / "negative.txt"
    for path, lines in zip(names, (POSITIVE, NEGATIVE), strict=True):
        path.write_text("\n\n".join(lines) + "\n")
    return names


@pytest.mark.parametrize("chat", [False, True])
def test_the_file_has_the_vector_that_the_function_returns(
    run: Run, files: tuple[Path, Path], tmp_path: Path, chat: bool
) -> None:
    path = tmp_path / "v.gguf"
    options = ["--method", "mean", "--pooling", "mean", *["--chat"][: int(chat)]]
    code, out, err = run("steer", "make", *files, "-m", "demo", "-o", path, *options)
    assert (code, out) == (0, f"{path}: 5 layers, from 2 pairs of prompts\n"), err
    with Engine.load("demo") as engine:
        asked = [
            [[{"role": "user", "content": each}] if chat else each for each in lines]
            for lines in (POSITIVE, NEGATIVE)
        ]
        expected = engine.make_control_vector(asked[0], asked[1], "mean", "mean")
    found = ControlVector.read(path)
    assert found.model_hint == expected.model_hint
    assert [*found.directions] == [*expected.directions]
    for layer, vector in expected.directions.items():
        np.testing.assert_allclose(found.directions[layer], vector, atol=1e-3)


def test_wrong_files_are_named(run: Run, files: tuple[Path, Path], tmp_path: Path) -> None:
    positive, negative = files
    empty, short, wrong = (tmp_path / name for name in ("empty", "short", "wrong"))
    empty.write_text("\n \n")
    short.write_text("What is 3 + 4?")
    wrong.write_bytes(b"\xff\xc0\x00a")
    missing = tmp_path / "missing"
    for given, message in (
        ((positive, empty), f"Error: {empty} has no prompts\n"),
        ((positive, short), f"{positive} has 2 prompts and {short} has 1 prompt: the prompts of "),
        ((positive, missing), f"Error: {missing}: No such file or directory\n"),
        ((wrong, negative), str(wrong)),
        ((positive, positive), "the positive and the negative prompts are the same"),
    ):
        output = tmp_path / "v.gguf"
        code, out, err = run("steer", "make", *given, "-m", "demo", "-o", output)
        assert (code, out) == (2, "")
        assert message in err
        assert not output.exists()
    code, _, err = run("steer", "make", *files, "-m", "no-such-model", "-o", tmp_path / "v.gguf")
    assert code == 2
    assert "no-such-model" in err
    code, _, err = run("steer", "make", *files, "-m", "demo", "-o", tmp_path / "none" / "v.gguf")
    assert code == 2
    assert "cannot write" in err
