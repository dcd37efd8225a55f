"""The errors of the set-up: what is missing, and the package that has it."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "setup" / "venv.sh"


@pytest.fixture
def set_up(tmp_path: Path) -> Callable[..., Any]:
    """Make a virtual environment where there are only these programs; return the error."""

    def set_up(**programs: str) -> str:
        folder = tmp_path / "bin"
        folder.mkdir()
        for name, script in programs.items():
            file = folder / name.replace("_", "+")
            file.write_text(f"#!/bin/sh\n{script}\n")
            file.chmod(0o755)
        command = ["/bin/sh", str(SCRIPT), str(tmp_path / "venv")]
        ended = subprocess.run(
            command, env={"PATH": str(folder)}, capture_output=True, text=True, timeout=60
        )
        assert ended.returncode == 1
        assert not (tmp_path / "venv").exists()
        (line,) = ended.stderr.splitlines()
        assert line.startswith("setup: ")
        return line

    return set_up


PYTHON = f'exec "{sys.executable}" "$@"'


def test_missing_python_is_reported(set_up: Callable[..., Any]) -> None:
    line = set_up()
    assert "no Python 3.11 or newer found" in line
    assert line.endswith("apt-get install python3 python3-venv")


def test_missing_compilers_are_reported(set_up: Callable[..., Any]) -> None:
    line = set_up(python3=PYTHON)
    assert "no C compiler found (cc)" in line
    assert line.endswith("apt-get install build-essential")


def test_missing_cpp_compiler_is_reported(set_up: Callable[..., Any]) -> None:
    assert "no C compiler found (c++)" in set_up(python3=PYTHON, cc="exit 0")


@pytest.mark.parametrize(("wanted", "header"), [("none", "stdlib.h"), ("stdlib", "vector")])
def test_missing_headers_are_reported(set_up: Callable[..., Any], wanted: str, header: str) -> None:
    knows = f'read -r include; case "$include" in *{wanted}*) exit 0;; esac; exit 1'
    line = set_up(python3=PYTHON, cc="exit 0", c__=knows)
    assert f"cannot compile a program with <{header}>" in line
    assert line.endswith("apt-get install build-essential")


def test_missing_venv_module_is_reported(set_up: Callable[..., Any]) -> None:
    python = 'case "$1$2" in -mvenv) exit 1;; esac; ' + PYTHON
    version = "{}.{}".format(*sys.version_info)
    line = set_up(python3=python, cc="exit 0", c__="exit 0", rm="exit 0")
    assert line.endswith(f"apt-get install python{version}-venv")
