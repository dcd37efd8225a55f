"""The version of ggml: the package's is in pyproject.toml, ggml's own in the check of libraries."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

from tampu.ml.linking import VERSION
from tools.wheel.compile_ggml import ggml_version

ROOT = Path(__file__).parents[2]
PACKAGE = "ggml-python"
KINDS = {".c", ".h", ".md", ".py", ".sh", ".toml", ".txt", ".yml", ".yaml"}
NAMES = {"Makefile", "Dockerfile"}
# The lock is made from pyproject.toml; these two say what was, with a date.
RECORDS = {"requirements.lock", "CHANGELOG.md", "benchmarks/README.md"}
FOLDERS = (".ci", "benchmarks", "deploy", "docs", "examples", "tampu", "tests", "tools")


def required() -> str:
    """The version in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (found,) = (each for each in project["dependencies"] if each.startswith(f"{PACKAGE}=="))
    return str(found.removeprefix(f"{PACKAGE}=="))


def files_with(word: str) -> set[str]:
    """The files of the repository that have a word."""
    pattern = re.compile(rf"(?<![\d.]){re.escape(word)}(?![\d.]*\d)")
    inside = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))
    return {
        path.relative_to(ROOT).as_posix()
        for path in (*ROOT.iterdir(), *inside)
        if (path.suffix in KINDS or path.name in NAMES)
        and "node_modules" not in path.parts
        and path.is_file()
        if pattern.search(path.read_text(encoding="utf-8"))
    } - RECORDS


def test_the_package_is_named_in_one_place() -> None:
    assert files_with(required()) == {"pyproject.toml"}


def test_ggmls_own_version_is_named_in_one_place() -> None:
    assert files_with(VERSION) == {"tampu/ml/linking.py"}


def test_what_is_installed_and_what_a_wheel_compiles_follow_from_it() -> None:
    assert version(PACKAGE) == ggml_version() == required()
