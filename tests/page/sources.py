"""The page's sources: types, style, their own tests, and that they are what is served."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tampu.server.features.page.routes import STATIC

WEB = Path(__file__).parents[2] / "web"
CHECKS = {
    "types": ("npx", "tsc"),
    "style": ("npm", "run", "lint"),
    "units": ("npm", "test"),
}


def run(home: Path, *command: str, **environment: str) -> str:
    """Run a program of the virtual environment in the folder of the sources; return its output."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}"
    done = subprocess.run(
        command,
        cwd=WEB,
        env={"PATH": path, "HOME": str(home), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("check", CHECKS)
def test_check_passes(tmp_path: Path, check: str) -> None:
    run(tmp_path, *CHECKS[check])


def test_what_is_served_is_what_the_sources_make(tmp_path: Path) -> None:
    run(tmp_path, "npx", "vite", "build", OUT=str(tmp_path / "built"))
    built, served = files(tmp_path / "built"), files(STATIC)
    assert set(built) == set(served), "`make web` builds the page"
    assert [name for name in built if built[name] != served[name]] == []
