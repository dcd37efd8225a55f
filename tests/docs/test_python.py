"""What docs/python.md says: its examples run, and its table has the methods of the class."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tampu import Engine

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
WHOLE = [block for block in BLOCKS if "Engine.load(" in block]


def test_the_table_has_the_methods_of_the_engine() -> None:
    rows = re.findall(r"^\| (`.*?) \|", PAGE, re.M)
    named = {name for row in rows for name in re.findall(r"`(\w+)", row)}
    methods = {
        name
        for kind in Engine.__mro__[:-1]
        for name, value in vars(kind).items()
        if callable(value) and not name.startswith("_")
    }
    assert named == methods


@pytest.mark.parametrize("block", WHOLE, ids=range(len(WHOLE)))
def test_an_example_runs(block: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    if "snapshot" in block:
        assert int(done.stdout.splitlines()[-1]) > 0  # of the second engine, from the file
