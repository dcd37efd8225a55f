"""`tampu steer make` writes the vector that the function returns, and names wrong files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.tiny_model import Tiny, write_tiny

from tampu.engine.control_vector import ControlVector
from tampu.engine.engine import Engine
from tests.cli.conftest import Run

POSITIVE = ["What is 45 + 46?", "What is 50 + 44?"]
NEGATIVE = ["What is 30 + 31?", "What is 25 + 37?"]


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAMPU_HOST", "127.0.0.1:1")


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
        assert found.directions[layer] @ vector > 0.99  # both of length 1; batches may differ


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


QUESTION = "What is 27 + 58?"


@pytest.fixture(scope="module")
def nineties(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vector to sums in the nineties, from those in the sixties."""
    path = tmp_path_factory.mktemp("vectors") / "nineties.gguf"
    asked = [
        [[{"role": "user", "content": f"What is {a} + {total - a}?"}] for a in range(30, 50)]
        for total in (94, 64)
    ]
    with Engine.load("demo") as engine:
        engine.make_control_vector(asked[0], asked[1]).save(path)
    return path


def test_run_adds_a_control_vector(run: Run, nineties: Path, tmp_path: Path) -> None:
    def answer(*options: object) -> int:
        code, out, err = run("run", "demo", QUESTION, "-o", "temperature=0", *options)
        assert code == 0, err
        return int(out)

    layer = ("--control-vector-layer-range", 3, 3)
    assert answer() == answer("--control-vector", f"{nineties}:0", *layer) == 85
    more = answer("--control-vector", f"{nineties}:8", *layer)
    assert answer("--control-vector-scaled", f"{nineties}:-4", *layer) < 85 < more
    halves = [each for _ in range(2) for each in ("--control-vector", f"{nineties}:4")]
    assert answer(*halves, *layer) == more
    colon = tmp_path / "x:8"  # a file of this name comes before a scale
    (tmp_path / "x").write_text("no vector")
    ControlVector({3: ControlVector.read(nineties).directions[3] * 8}).save(colon)
    assert answer("--control-vector", colon) == more


def test_an_embedding_is_steered_too(run: Run, tmp_path: Path) -> None:
    model = write_tiny(tmp_path / "e.gguf", Tiny(context=16), pooling=1)
    ControlVector({1: np.arange(Tiny().embedding, dtype=np.float32)}).save(tmp_path / "v.gguf")
    plain = run("run", model, "a")
    steered = run("run", model, "a", "--control-vector", tmp_path / "v.gguf")
    assert plain[0] == steered[0] == 0, steered[2]
    assert plain[1] != steered[1]


def test_wrong_control_vectors_are_named(run: Run, nineties: Path, tmp_path: Path) -> None:
    narrow = tmp_path / "narrow.gguf"
    ControlVector({1: [1.0]}).save(narrow)
    for options, message in (
        (("--control-vector", f"{nineties}:x"), "'x' in "),
        (("--control-vector", f"{nineties}:nan"), "steering: strength must be"),
        (("--control-vector", tmp_path / "none.gguf"), "none.gguf"),
        (("--control-vector", narrow), "a vector of 1 numbers does not fit layer_outputs:1"),
        (("--control-vector-layer-range", 1, 2), "needs --control-vector"),
        (
            ("--control-vector", nineties, "--control-vector-layer-range", 7, 9),
            "the control vector has no layer of 7 to 9",
        ),
    ):
        code, out, err = run("run", "demo", QUESTION, *options)
        assert (code, out) == (2, "")
        assert message in err
