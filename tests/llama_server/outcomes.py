"""A plugin for llama-server's own tests: writes the outcome of each to a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option with the path of that file."""
    parser.addoption("--outcomes", type=Path, required=True)


def pytest_configure(config: pytest.Config) -> None:
    """Note what the tests of this run do."""
    config.pluginmanager.register(Outcomes(config.getoption("--outcomes")))


class Outcomes:
    """The outcome of each test by its name."""

    def __init__(self, path: Path) -> None:
        """Write them to this path at the end."""
        self._path = path
        self._found: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note an outcome: what fails in set-up or tear-down has failed."""
        if report.outcome != "passed" or report.when == "call":
            name = report.nodeid.removeprefix("unit/")
            is_lost = self._found.get(name) == "failed"
            self._found[name] = "failed" if is_lost else report.outcome

    def pytest_sessionfinish(self) -> None:
        """Write them."""
        self._path.write_text(json.dumps(self._found, indent=0))
