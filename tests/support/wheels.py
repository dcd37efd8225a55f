"""Wheels in an environment where there is nothing else to be found by name."""

from __future__ import annotations

import subprocess
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def install(home: Path, *wanted: Path | str) -> None:
    """Make a virtual environment `venv` in a folder, and install wheels with what they require.

    Args:
        home: the folder.
        wanted: wheels, and options and requirements of pip.
    """
    venv.create(home / "venv", with_pip=True, symlinks=True)
    pip = [str(home / "venv/bin/python"), "-m", "pip", "--disable-pip-version-check", "install"]
    lock = str(ROOT / "requirements.lock")
    options = ["--quiet", "--only-binary", ":all:", "--constraint", lock]
    subprocess.run([*pip, *options, *wanted], env=environment(home), check=True)


def environment(home: Path, **more: Any) -> dict[Any, Any]:
    """Return the variables for a program of that environment."""
    return {"PATH": str(home / "venv" / "bin"), "HOME": str(home), "LANG": "C.UTF-8", **more}
