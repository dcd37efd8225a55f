"""`tampu ray` without Ray, and with a wrong one; with Ray: tests/cluster/live.py."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from tampu.cli import app, ray


def version_of(found: str | None) -> Callable[[str], str]:
    def version(_: str) -> str:
        if found is None:
            raise PackageNotFoundError
        return found

    return version


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (None, "Ray is not installed: pip install 'tampu[ray]'"),
        ("2.9.0", "Ray 2.9.0 is installed, and tampu needs 2.60: pip install 'tampu[ray]'"),
        ("2.600.0", "Ray 2.600.0 is installed"),
    ],
)
@pytest.mark.parametrize("command", [["up", "demo"], ["deploy", "cluster.yaml"]])
def test_without_the_right_ray_one_line_says_what_to_install(
    found: str | None,
    told: str,
    command: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(ray, "version", version_of(found))
    assert app.run(["ray", *command]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert told in line


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["up"], "Missing argument 'MODEL'"),
        (["up", "demo", "--replicas", "0"], "replicas must be 1 or more"),
        (["up", "demo", "--replicas", "3", "--max-replicas", "2"], "max_replicas must be 3"),
        (["deploy", "absent.yaml"], "absent.yaml cannot be read"),
    ],
)
def test_bad_input_is_one_line(
    command: list[str],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ray, "version", version_of("2.60.0"))
    assert app.run(["ray", *command]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert told in line


def test_an_address_that_others_can_reach_needs_a_key(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ray, "version", version_of("2.60.0"))
    assert app.run(["ray", "up", "demo", "--host", "0.0.0.0"]) == 2
    assert "anyone there could use your models" in capsys.readouterr().err
