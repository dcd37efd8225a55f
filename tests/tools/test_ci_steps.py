"""The checks of CI that are left out: which files each depends on, and when it runs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tools.ci.steps import ROOT, Step, files_of, hash_of, imported_modules, read_steps, record

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


def is_slow(file: Path) -> bool:
    return bool(re.search(r"mark\.slow\b", file.read_text(encoding="utf-8")))


def files_run_by(target: str) -> set[Path]:
    """Return what a recipe names: of a folder the slow tests, of a list the files that it names."""
    found = set()
    for name in re.findall(r"(?:tests|tools)/[\w./*]*[\w*]", recipe(target)):
        for path in ROOT.glob(name):
            found |= set(filter(is_slow, path.rglob("test_*.py"))) if path.is_dir() else {path}
    lines = [file.read_text(encoding="utf-8") for file in found if file.suffix == ".txt"]
    return found | {
        ROOT / name for name in re.findall(r"^tests/[\w/]+\.py", "\n".join(lines), re.M)
    }


def imported(files: Iterable[Path]) -> Iterator[Path]:
    """Yield the files of tampu and of the tools that files import, as they are named there."""
    for module in {module for file in files for module in imported_modules(file)}:
        path = ROOT / module.replace(".", "/")
        if module.startswith(("tampu.", "tools.", "benchmarks.")):
            yield from filter(Path.exists, (path.with_suffix(".py"), path / "__init__.py"))


TARGETS = re.findall(r"^([a-z-]+-test|test|cuda):", MAKEFILE, re.M)
TESTS = {file for file in (ROOT / "tests").rglob("*.py") if "\ndef test_" in file.read_text()}


@pytest.mark.parametrize("target", TARGETS)
def test_each_target_of_tests_is_run(target: str) -> None:
    listed = {each for step in STEPS.values() for each in targets(step)}
    assert target in BY_HAND or target in listed or f"make {target}" in RUN


@pytest.mark.parametrize("name", STEPS)
def test_each_check_of_the_table_is_run(name: str) -> None:
    looped = re.findall(r"^for check in (.*); do$", RUN, re.M)
    assert re.search(rf"\blong {name}\b", RUN) or name in " ".join(looped).split()


def test_each_file_of_tests_is_run_and_each_slow_one_by_one_target() -> None:
    by_file = [file for target in TARGETS for file in files_run_by(target) if file in TESTS]
    quick = {file for file in TESTS if file.name.startswith("test_")}
    assert quick.union(by_file) == TESTS
    room = [target for target in TARGETS if "$(SLOW_TESTS)" in recipe(target)]
    slow = Counter(file for target in room for file in files_run_by(target) & TESTS)
    assert slow == dict.fromkeys(filter(is_slow, quick), 1)


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_a_check_depends_on_the_files_that_it_runs_and_on_what_they_import(step: Step) -> None:
    named = {file for target in targets(step) for file in files_run_by(target)}
    covered = files_of(step.paths)
    assert named - covered == set()
    assert {*imported(named & TESTS)} - covered == set()


def test_a_check_depends_on_what_its_tests_import_of_tests(tmp_path: Path) -> None:
    support = tmp_path / "tests" / "support"
    support.mkdir(parents=True)
    (tmp_path / "tests" / "test_a.py").write_text("from support.one import x\n")
    (support / "one.py").write_text("from support import two\n")
    (support / "two.py").write_text("")
    (support / "three.py").write_text("")
    (support / "source.c").write_text("")
    found = files_of(["tests/test_a.py"], tmp_path)
    assert {file.name for file in found} == {"test_a.py", "one.py", "two.py", "source.c"}


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
