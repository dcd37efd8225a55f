"""The end of `.ci/run`: a line for each step. Its steps are programs of the test here."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAKE = '#!/bin/sh\n[ "$1" != "{fails}" ]\n'
PYTHON = """#!/bin/sh
for name; do :; done
[ $name != store ] || echo "left out: make store-test: its files are those with which it passed"
case " {flaky} " in
*" $name "*) echo "flaky:"; echo "  tests/$name.py::t: failed, then passed" ;;
esac
"""


def run(folder: Path, *, fails: str = "", flaky: str = "") -> tuple[int, list[str]]:
    """Return the exit code, and the lines of the summary without times."""
    for path, text in (("bin/make", MAKE), (".venv/bin/python", PYTHON)):
        program = folder / path
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(text.replace("{fails}", fails).replace("{flaky}", flaky))
        program.chmod(0o755)
    copy = folder / ".ci" / "run"
    copy.parent.mkdir()
    copy.write_bytes((ROOT / ".ci" / "run").read_bytes())
    environment = {"PATH": f"{folder / 'bin'}:{os.defpath}", "TMPDIR": str(folder)}
    done = subprocess.run(
        ["bash", copy], env=environment, capture_output=True, text=True, check=False
    )
    lines = done.stdout.partition("ci: after ")[2].splitlines()[1:]
    return done.returncode, [re.sub(r"\d+ s", "0 s", line.strip()) for line in lines]


def test_every_step_has_a_line(tmp_path: Path) -> None:
    code, lines = run(tmp_path, flaky="page")
    assert code == 0
    assert "passed in 0 s: make test" in lines
    assert "passed in 0 s: make types" in lines
    assert "left out: make store-test: its files are those with which it passed" in lines
    assert "passed in 0 s: .venv/bin/python -m tools.ci.steps page" in lines
    assert "flaky: tests/page.py::t: failed, then passed" in lines
    assert not any("store" in line for line in lines if line.startswith("passed"))


def test_a_step_that_fails_is_the_last(tmp_path: Path) -> None:
    code, lines = run(tmp_path, fails="lint")
    assert code == 1
    assert [line for line in lines if "FAILED" in line] == ["FAILED (1) after 0 s: make lint"]
    assert "passed in 0 s: make types" in lines
    assert not any("docs" in line for line in lines)


@pytest.mark.parametrize(("flaky", "code"), [("page", 0), ("page lighthouse", 1)])
def test_two_flaky_tests_fail_the_run(tmp_path: Path, flaky: str, code: int) -> None:
    assert run(tmp_path, flaky=flaky)[0] == code
