"""All of Ollama's commands and flags exist; other modules test their output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
from support.scripted import write_scripted
from support.tiny_model import Tiny, write_tiny

from tampu.cli import app
from tests.cli.conftest import Run

COMMANDS = {
    "serve": "", "start": "", "list": "", "ls": "", "ps": "", "cp": "", "rm": "", "stop": "",
    "help": "",
    "run": "--keepalive --verbose --insecure --nowordwrap --format --think --hidethinking "
           "--truncate --dimensions",
    "create": "-f --file -q --quantize",
    "show": "--license --modelfile --parameters --system --template -v --verbose",
    "pull": "--insecure",
    "push": "--insecure",
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TAMPU_HOST", "127.0.0.1:1")
    monkeypatch.setenv("TAMPU_MODELS", str(tmp_path / "models"))


@pytest.mark.parametrize("command", COMMANDS)
def test_command_has_its_flags_in_its_help(run: Run, command: str) -> None:
    group: Any = typer.main.get_command(app.app)
    found = group.commands[command]
    flags = {flag for parameter in found.params for flag in parameter.opts}
    assert flags >= set(COMMANDS[command].split())
    code, out, _ = run(command, "--help")
    assert code == 0
    assert all(flag in out for flag in COMMANDS[command].split())


def test_help_command(run: Run) -> None:
    assert run("help")[1] == run("--help")[1]
    assert run("help", "pull")[1] == run("pull", "--help")[1]
    assert run("help", "nothing")[0] == 2


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("m") / "e.gguf", Tiny(context=16), pooling=1)


def test_text_too_long_to_embed_is_cut_or_refused(run: Run, embedder: Path) -> None:
    text = "word " * 50
    for flag in ((), ("--truncate",), ("--truncate=true",)):
        code, out, _ = run("run", embedder, *flag, text)
        assert (code, out[:1]) == (0, "[")
    code, _, err = run("run", embedder, "--truncate=false", text)
    assert (code, "16" in err) == (2, True)
    assert "true or false" in run("run", embedder, "--truncate=some", text)[2]


def test_prompt_that_is_too_long_is_cut_with_a_warning_or_refused(run: Run, tmp_path: Path) -> None:
    talker = write_scripted(tmp_path / "m.gguf", ["Well", "."], context=64)
    code, out, err = run("run", talker, "word " * 200)
    assert (code, out) == (0, "Well.\n")
    assert "tokens of the conversation were dropped" in err
    code, out, err = run("run", talker, "--truncate=false", "word " * 200)
    assert (code, out) == (2, "")
    assert "is too long" in err


def test_a_format_that_was_cut_is_said(run: Run, tmp_path: Path) -> None:
    talker = write_scripted(tmp_path / "m.gguf", ['{"a":', " 1", "}"])
    code, out, err = run("run", talker, "--format", "json", "--num-predict", "2", "x")
    assert (code, out.strip()) == (0, '{"a": 1')
    assert "warning: the answer was cut before it had its whole format" in err
    assert run("run", talker, "--format", "json", "x") == (0, '{"a": 1}\n', "")


def test_repeating_answer_ends(run: Run, tmp_path: Path) -> None:
    looper = write_scripted(tmp_path / "m.gguf", ["Well", " la"], repeats=1)
    assert run("run", looper, "x") == (0, "Well" + " la" * 31 + "\n", "")
    assert run("run", looper, "x", "--num-predict", "50")[1] == "Well" + " la" * 49 + "\n"


def test_verbose_show_prints_metadata_and_tensors(run: Run, tmp_path: Path) -> None:
    path = write_scripted(tmp_path / "m.gguf", ["Well", " la"])
    short, whole = run("show", path)[1], run("show", path, "-v")[1]
    assert "Metadata" not in short
    sections = whole.split("\n\n")
    [metadata] = [section for section in sections if section.startswith("  Metadata\n")]
    [tensors] = [section for section in sections if section.startswith("  Tensors\n")]
    names = [line.split()[0] for line in metadata.splitlines()[1:]]
    assert names == sorted(names)
    assert "    llama.context_length" in metadata
    assert "tokenizer.ggml.tokens" in metadata
    assert "more]" in metadata
    assert all(len(line) <= 110 for line in metadata.splitlines())
    assert any(line.split() == ["output_norm.weight", "F32", "[316]"] or "output_norm" in line
               for line in tensors.splitlines())  # fmt: skip


def test_required_version_and_projector_are_shown(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "Modelfile"
    path = write_scripted(tmp_path / "m.gguf", ["Well", " la"])
    file.write_text(f"FROM {path}\nREQUIRES 0.19.0\nPARAMETER repeat_penalty 1.0\n")
    assert run("create", "made", "-f", file)[0] == 0
    shown = run("show", "made")[1]
    assert "    requires            0.19.0\n" in shown
    assert run("show", "made", "--parameters")[1] == f"{'repeat_penalty':<30} 1\n"
