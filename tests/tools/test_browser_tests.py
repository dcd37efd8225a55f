"""Browser tests that fail are run once more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.ci.browser_tests import MOST_FAILURES, run_again

ROOT = Path(__file__).parents[2]
FLAKY = """
from pathlib import Path

def fails_first(name: str) -> None:
    file = Path(__file__).with_name(name)
    is_first = not file.exists()
    file.touch()
    assert not is_first
"""


@pytest.mark.parametrize(
    ("second", "code"),
    [({"one": True}, 0), ({"one": False}, 1), ({"one": True, "two": True}, 1),
     ({"one": True, "two": False}, 1)],
)  # fmt: skip
def test_one_test_that_passes_alone_is_fine(
    second: dict[str, bool], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_again([*second], second.__getitem__) == code
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == ("flaky:" if any(second.values()) else "failed twice:")
    words = {True: "passed", False: "failed"}
    assert lines[1:] == [f"  {name}: failed, then {words[has]}" for name, has in second.items()]


def test_many_failures_are_not_run_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_again([str(each) for each in range(MOST_FAILURES + 1)], lambda _: True) == 1
    assert "none is run again" in capsys.readouterr().out


@pytest.mark.parametrize("flags", [[], pytest.param(["-n1"], marks=pytest.mark.slow)])
def test_a_real_run_says_both_results(tmp_path: Path, flags: list[str]) -> None:
    """In processes of their own, side by side too."""
    (tmp_path / "pytest.ini").touch()
    file = tmp_path / "test_one.py"
    file.write_text(FLAKY + "\ndef test_flaky(): fails_first('f')\ndef test_fine(): pass\n")
    folder = str(tmp_path)
    program = [sys.executable, "-m", "tools.ci.browser_tests"]
    command = [*program, *flags, "--rootdir", folder, str(file)]
    run = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=120,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert "1 failed, 1 passed" in run.stdout
    assert run.stdout.endswith("flaky:\n  test_one.py::test_flaky: failed, then passed\n")
