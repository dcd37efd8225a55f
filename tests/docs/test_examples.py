"""The code blocks of README and docs run, and their imports exist."""

from __future__ import annotations

import ast
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image, ImageDraw
from support.hidden import HIDDEN
from support.serving import start_server

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
DEMO = ROOT / "tampu" / "data" / "demo.gguf"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
# Commands of README that no test runs from there, and where they are tested.
ELSEWHERE = {
    "git clone": "set-up: a fresh clone is what a test run begins with",
    "make run": "set-up: `.ci/run` does it",
    "uvx tampu": "needs the published package; tests/wheel runs the wheel",
    "pip install tampu": "needs the published package; tests/wheel installs the wheel",
    "tampu serve": "tests/support/serving.py starts it for the blocks below",
    "curl": "tests/clients ask the same with the client libraries",
    "tampu bench": "takes a minute; tests/bench",
    "tampu convert": "needs a checkpoint; tests/convert",
    "tampu quantize": "the built-in model's rows are too short for K-quants; tests/convert",
    "tampu pull": "needs a registry; tests/registry",
}


def blocks(page: Path, language: str) -> list[str]:
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [text for given, text in found if given == language]


def commands(page: Path) -> list[str]:
    """Return the lines behind `$ `, without their comments."""
    lines = "".join(blocks(page, "console")).splitlines()
    return [re.sub(r"\s+# .*", "", line[2:]) for line in lines if line.startswith("$ ")]


PYTHON = [(page, text) for page in PAGES for text in blocks(page, "python")]


@pytest.mark.parametrize(("page", "text"), PYTHON, ids=lambda value: getattr(value, "name", ""))
def test_python_blocks_are_python_and_import_what_exists(page: Path, text: str) -> None:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tampu"):
            there = names_in(node.module or "")
            for name in node.names:
                assert name.name in there, f"{page.name}: {node.module}.{name.name}"


def names_in(module: str) -> set[str]:
    """Return the names in a module; of one that imports Ray, by its source.

    The tests' set-up has no Ray: tests/cluster/datasets.py runs these blocks.
    """
    try:
        return set(dir(importlib.import_module(module)))
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
    source = ROOT.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")
    defined = ast.FunctionDef | ast.ClassDef
    return {each.name for each in ast.parse(source).body if isinstance(each, defined)}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that README's examples name, in the current folder."""
    shutil.copy(DEMO, tmp_path / "model.gguf")
    picture = Image.new("RGB", (64, 64), "white")
    ImageDraw.Draw(picture).ellipse((16, 16, 48, 48), fill="red")
    picture.save(tmp_path / "picture.png")
    (tmp_path / "letter.txt").write_text("Ann is 31 years old and lives in Lima.")
    (tmp_path / "schema.json").write_text('{"type": "object", "properties": {"a": {"const": 1}}}')
    asked = '[{"type": "predicate", "instructions": "The customer is angry."}]'
    (tmp_path / "questions.json").write_text(asked)
    (tmp_path / "tickets.jsonl").write_text('"I was charged twice."\n')
    (tmp_path / "Modelfile").write_text("FROM ./model.gguf\nPARAMETER temperature 0\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.server
def test_python_of_readme_runs(folder: Path, tmp_path: Path) -> None:
    server = start_server(tmp_path / "models", tmp_path)
    try:
        text = "\n".join(blocks(README, "python")).replace("http://127.0.0.1:11434", server.url)
        environment = {"HOME": str(folder), "OLLAMA_HOST": server.url, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", text],
            env=environment, cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
    finally:
        server.stop()
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("line", commands(README))
def test_commands_of_readme_run(line: str, folder: Path) -> None:
    if any(line.startswith(known) for known in ELSEWHERE):
        return
    assert line.startswith("tampu "), f"not a command that this test knows: {line}"
    tampu = f"{shlex.quote(sys.executable)} -m tampu.cli.entry"
    script = line.replace("tampu ", f"{tampu} ")
    environment = {
        "HOME": str(folder),
        "PATH": os.defpath,
        "TAMPU_MODELS": str(folder / "models"),
        "TAMPU_HOST": "127.0.0.1:1",  # where no server listens
        "PYTHONPATH": str(ROOT),
        **HIDDEN,
    }
    done = subprocess.run(
        ["/bin/sh", "-c", script],
        env=environment, cwd=folder, capture_output=True, text=True, check=False,
        input=None if "<" in line else "What is 27 + 58?",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
