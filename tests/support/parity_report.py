"""The largest errors against transformers, from all processes of the tests: a table at the end.

A plugin of pytest (tests/conftest.py names it): with pytest-xdist the process that prints the table
loads no conftest.py of a subfolder.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

ParityError = tuple[str, str, str, float]  # comparison, model, its architecture in GGUF, error

_ERRORS = pytest.StashKey[list[ParityError]]()
_OUTPUT = "parity_errors"  # of a process of pytest-xdist


def report_errors(config: pytest.Config, errors: Iterable[ParityError]) -> None:
    """Add these errors to the table."""
    output: dict[str, object] | None = getattr(config, "workeroutput", None)
    if output is not None:
        output[_OUTPUT] = list(errors)
    else:
        config.stash[_ERRORS] += errors


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--errors", help="write the largest relative errors to this JSON file")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_ERRORS] = []


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: WorkerController) -> None:
    """Take the errors that a process of pytest-xdist measured."""
    report_errors(node.config, getattr(node, "workeroutput", {}).get(_OUTPUT, ()))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    largest: dict[tuple[str, str, str], float] = {}
    for what, name, architecture, error in config.stash[_ERRORS]:
        key = (what, name, architecture)
        largest[key] = max(error, largest.get(key, 0.0))
    rows = sorted(largest.items())
    if rows and (path := config.getoption("--errors", None)):
        found = [(architecture, what, error) for (what, _, architecture), error in rows]
        Path(path).write_text(json.dumps(found), encoding="utf-8")
    if rows:
        terminalreporter.section("largest relative error against transformers")
    for (what, name, _), error in rows:
        terminalreporter.write_line(f"{what:32} {name:20} {error:.1e}")
