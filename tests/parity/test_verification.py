"""`tampu convert --verify`: a file that computes something else than its checkpoint is found."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import transformers
from support.laboratory import Laboratory

from tampu.cli import app
from tampu.engine import verification
from tampu.engine.verification import Verification, verify
from tampu.ml.gguf import read_gguf

pytestmark = [pytest.mark.parity, pytest.mark.slow]


@pytest.mark.parametrize(
    ("name", "type_", "what"),
    [
        ("llama", "F32", "logits"),
        ("gemma3_text", "F16", "logits"),
        ("qwen3vl", "F32", "logits"),
        ("bert", "F32", "hidden states"),
        ("bert_ranker", "F32", "hidden states"),
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


def broken(file: Path, name: str) -> None:
    """Overwrite a tensor of a written file with zeros."""
    info = read_gguf(file).tensors[name]
    with file.open("r+b") as out:
        out.seek(info.offset)
        out.write(bytes(info.size_bytes))


@pytest.mark.parametrize(
    ("name", "type_", "tensor"),
    [
        ("llama", "F32", "blk.1.attn_k.weight"),
        ("llama", "F16", "blk.2.ffn_norm.weight"),
        ("bert", "F32", "blk.0.attn_q.bias"),
    ],
)
def test_one_broken_tensor_is_found_and_every_file_removed(
    laboratory: Laboratory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    type_: str,
    tensor: str,
) -> None:
    def verify_broken(file: Path, checkpoint: Path) -> Verification:
        broken(file, tensor)
        return verify(file, checkpoint)

    monkeypatch.setattr(verification, "verify", verify_broken)
    output = tmp_path / "out.gguf"
    command = ["convert", str(laboratory.checkpoint(name)), "-o", str(output), "--type", type_]
    assert app.run([*command, "--verify"]) == 2
    assert "this is another model; removed" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_projector_is_removed_with_its_model(
    laboratory: Laboratory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "LIMITS", {"F32": 0.0})
    source, files = (
        laboratory.checkpoint("gemma3_vision"),
        [tmp_path / "a.gguf", tmp_path / "b.gguf"],
    )
    command = ["convert", str(source), "-o", str(files[0]), "--mmproj", str(files[1])]
    assert app.run([*command, "--type", "F32", "--verify"]) == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [AttributeError("no such\nclass"), ImportError("needs timm")])
def test_what_transformers_cannot_compute_is_one_line(
    laboratory: Laboratory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(transformers.LlamaForCausalLM, "from_pretrained", fail)
    output = tmp_path / "out.gguf"
    assert app.run(["convert", str(laboratory.checkpoint("llama")), "-o", str(output), "--verify"])
    told = capsys.readouterr().err
    first = str(error).partition("\n")[0]
    assert f"transformers cannot compute it: {type(error).__name__}: {first}; not comp" in told
    assert output.exists()  # it may well be right


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
