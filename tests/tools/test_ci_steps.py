"""The checks of CI that are left out: which files each depends on, and when it runs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.ci.steps import ROOT, Step, hash_of, read_steps, record

STEPS = read_steps()
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
RUN = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
# Not part of CI: what these need, and how long they take, is in CONTRIBUTING.md.
BY_HAND = {"llama-server-test", "gpu-bundle-test", "wheel-cuda-test"}


def recipe(target: str) -> str:
    """Return the commands of a target of the Makefile."""
    found = re.search(rf"^{re.escape(target)}:.*\n((?:\t.*\n)*)", MAKEFILE, re.M)
    assert found, target
    return found[1]


def targets(step: Step) -> Iterator[str]:
    for command in step.command.split("&&"):
        yield from command.split()[1:]


def is_covered(path: Path, step: Step) -> bool:
    return any(path == ROOT / each or ROOT / each in path.parents for each in step.paths)


def imported(file: Path) -> Iterator[Path]:
    """Yield the files of tampu that a file imports, as they are named there."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tampu."):
            path = ROOT / (node.module or "").replace(".", "/")
            yield path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@pytest.mark.parametrize("target", re.findall(r"^([a-z-]+-test|test|cuda):", MAKEFILE, re.M))
def test_each_target_of_tests_is_run(target: str) -> None:
    listed = {each for step in STEPS.values() for each in targets(step)}
    assert target in BY_HAND or target in listed or f"make {target}" in RUN


@pytest.mark.parametrize("name", STEPS)
def test_each_check_of_the_table_is_run(name: str) -> None:
    assert re.search(rf"\blong {name}\b", RUN)


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_a_check_depends_on_the_files_that_it_runs_and_on_what_they_import(step: Step) -> None:
    named = {
        ROOT / path
        for target in targets(step)
        for path in re.findall(r"(?:tests|tools)/[\w./]*\w", recipe(target))
    }
    lists = [file for file in named if file.suffix == ".txt"]
    for line in (line for file in lists for line in file.read_text(encoding="utf-8").split("\n")):
        named |= {ROOT / line.partition("::")[0]} if line.startswith("tests/") else set()
    assert all(is_covered(file, step) for file in named)
    tests = [file for file in named if file.suffix == ".py" and "tests" in file.parts]
    missing = {each for file in tests for each in imported(file) if not is_covered(each, step)}
    assert not missing


def test_a_hash_changes_with_names_and_contents_of_files_in_the_repository(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one.py").write_text("1")
    found = [hash_of(["a"], tmp_path)]
    (tmp_path / "a" / "library.so").write_text("2")
    (tmp_path / "a" / "__pycache__").mkdir()
    (tmp_path / "a" / "__pycache__" / "one.pyc").write_text("3")
    assert hash_of(["a"], tmp_path) == found[0]
    (tmp_path / "a" / "one.py").rename(tmp_path / "a" / "two.py")
    found.append(hash_of(["a"], tmp_path))
    (tmp_path / "a" / "two.py").write_text("4")
    found.append(hash_of(["a"], tmp_path))
    assert len({*found}) == 3
    with pytest.raises(FileNotFoundError, match=r"b is in steps\.toml and not in the repository"):
        hash_of(["b"], tmp_path)


def test_the_hash_of_a_passed_run_is_written_in_its_row_only(tmp_path: Path) -> None:
    table = tmp_path / "steps.toml"
    row = '[{}]\ncommand = "make {}"\npaths = ["tests"]\npassed = ""\n\n'
    table.write_text("# Why.\n" + "".join(row.format(name, name) for name in ("one", "two")))
    record("two", "f00", table)
    record("one", "ba5", table)
    assert {name: step.passed for name, step in read_steps(table).items()} == {
        "one": "ba5", "two": "f00",
    }  # fmt: skip
    assert table.read_text().startswith("# Why.\n[one]\n")
