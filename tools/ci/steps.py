"""Runs one of the longest checks, unless its files are those of its last passed run.

    python -m tools.ci.steps vulkan         leaves it out if nothing that it depends on has changed
    python -m tools.ci.steps --all vulkan   runs it, and writes the hash of its files if it passes

`.ci/steps.toml` has the commands, the files and the hashes.
"""

from __future__ import annotations

import argparse
import ast
import fcntl
import functools
import hashlib
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = ROOT / ".ci" / "steps.toml"
_GENERATED = re.compile(r"__pycache__|node_modules|.+\.so(\..+)?|.+\.pyc")


@dataclass(frozen=True)
class Step:
    """A check.

    Args:
        command: what runs it, in the root of the repository.
        paths: files and folders that it depends on. What tests import of `tests` is found.
        passed: the hash of their contents when it last passed; empty: it never did.
    """

    command: str
    paths: tuple[str, ...]
    passed: str


def read_steps(table: Path = TABLE) -> dict[str, Step]:
    """Return the checks by name."""
    rows = tomllib.loads(table.read_text(encoding="utf-8"))
    return {
        name: Step(row["command"], tuple(row["paths"]), row["passed"]) for name, row in rows.items()
    }


def hash_of(paths: Sequence[str], root: Path = ROOT) -> str:
    """Return a hash of the names and contents of the files that a check depends on.

    Raises:
        FileNotFoundError: for a path that is not there.
    """
    digest = hashlib.sha256()
    for path in sorted(files_of(paths, root)):
        name = path.relative_to(root).as_posix().encode()
        digest.update(b"%d %s %s" % (len(name), name, hashlib.sha256(path.read_bytes()).digest()))
    return digest.hexdigest()


def files_of(paths: Sequence[str], root: Path = ROOT) -> set[Path]:
    """Return these files, those in these folders, and what the tests among them import of `tests`.

    Raises:
        FileNotFoundError: for a path that is not there.
    """
    found = {file for each in paths for file in _files(root / each)}
    new = {file for file in found if root / "tests" in file.parents and file.suffix == ".py"}
    while new:
        imported = {file for each in new for file in _imported_tests(each, root)}
        new = imported - found
        found |= new
    if root / "tests" / "support" in {file.parent for file in found}:
        others = (root / "tests" / "support").iterdir()  # C sources and certificates
        found |= {file for file in others if file.is_file() and file.suffix != ".py"}
    return found


def imported_modules(file: Path) -> Iterator[str]:
    """Yield the modules that a file of Python imports; a name in a module is one, too."""
    yield from _imports(file.read_text(encoding="utf-8"))


@functools.cache  # checks and tests share most files, and parsing them takes most of the time
def _imports(source: str) -> tuple[str, ...]:
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append(node.module)
            found += (f"{node.module}.{alias.name}" for alias in node.names)
    return tuple(found)


def _imported_tests(file: Path, root: Path) -> Iterator[Path]:
    for module in imported_modules(file):
        folder = root / "tests" if module.startswith("support.") else root
        path = folder / (module.replace(".", "/") + ".py")
        if module.startswith(("support.", "tests.")) and path.exists():
            yield path


def _files(path: Path) -> Iterator[Path]:
    """Yield the files of a folder that are in the repository; a file is its only one."""
    if not path.exists():
        raise FileNotFoundError(f"{path} is in {TABLE.name} and not in the repository")
    for file in path.rglob("*") if path.is_dir() else [path]:
        if file.is_file() and not any(_GENERATED.fullmatch(part) for part in file.parts):
            yield file


def record(name: str, passed: str, table: Path = TABLE) -> None:
    """Write the hash with which a check passed; others may do so at the same time."""
    with table.open("r+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        before, heading, after = file.read().partition(f"[{name}]\n")
        after = re.sub(r'^passed = ".*"$', f'passed = "{passed}"', after, count=1, flags=re.M)
        file.seek(0)
        file.truncate()
        file.write(before + heading + after)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run a check if its files have changed.")
    parser.add_argument("--all", action="store_true", help="Run it anyway, and write its hash.")
    parser.add_argument("name", choices=read_steps())
    chosen = parser.parse_args()
    step = read_steps()[chosen.name]
    now = hash_of(step.paths)
    if now == step.passed and not chosen.all:
        print(f"left out: {step.command}: its files are those with which it passed ({now[:8]})")
        return 0
    code = subprocess.run(shlex.split(step.command), cwd=ROOT, check=False).returncode
    if code == 0 and chosen.all:
        record(chosen.name, now)
    return code


if __name__ == "__main__":
    sys.exit(main())
