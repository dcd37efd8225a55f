"""`tampu convert --verify`: a file that computes something else than its checkpoint is found."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.laboratory import Laboratory

from tampu.cli import app
from tampu.engine import verification
from tampu.engine.verification import verify

pytestmark = pytest.mark.parity


@pytest.mark.parametrize(
    ("name", "type_", "what"),
    [
        ("llama", "F32", "logits"),
        ("gemma3_text", "F16", "logits"),
        ("qwen3vl", "F32", "logits"),
        ("bert", "F32", "hidden states"),
    ],
)
def test_a_right_file_passes(laboratory: Laboratory, name: str, type_: str, what: str) -> None:
    found = verify(laboratory.file(name, type_), laboratory.checkpoint(name))
    assert found.passed
    assert found.what == what
    assert found.same > 0.97
    assert str(found).startswith(f"compared with transformers: {what} of 3 texts differ by ")


def test_another_model_of_the_same_shape_does_not_pass(laboratory: Laboratory) -> None:
    found = verify(laboratory.file("llama_rope_linear"), laboratory.checkpoint("llama"))
    assert not found.passed
    assert found.error > 10 * found.limit


def test_the_command_removes_a_file_that_differs(
    laboratory: Laboratory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    checkpoint, output = laboratory.checkpoint("llama"), tmp_path / "out.gguf"
    command = ["convert", str(checkpoint), "-o", str(output), "--type", "F32", "--verify"]
    assert app.run(command) == 0
    assert "compared with transformers: logits of 3 texts differ by" in capsys.readouterr().out
    assert output.exists()
    monkeypatch.setattr(verification, "LIMITS", {"F32": 0.0})
    assert app.run(command) == 2
    assert "this is another model" in capsys.readouterr().err
    assert not output.exists()


def test_without_torch_it_says_what_to_install_before_it_converts(
    laboratory: Laboratory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    checkpoint, output = laboratory.checkpoint("llama"), tmp_path / "out.gguf"
    monkeypatch.setitem(sys.modules, "torch", None)
    assert app.run(["convert", str(checkpoint), "-o", str(output), "--verify"]) != 0
    assert "pip install torch transformers" in capsys.readouterr().err
    assert not output.exists()


def test_an_adapter_is_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["convert", str(tmp_path), "-o", str(tmp_path / "a.gguf"), "--verify", "--base", "x"]
    assert app.run(command) != 0
    assert "--verify compares models" in capsys.readouterr().err
