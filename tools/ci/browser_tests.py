"""Runs tests in a browser, and those that fail once more, each alone.

    python -m tools.ci.browser_tests -n 2 tests/page/chat.py ...

takes pytest's arguments. A browser, its driver and a page each have timers that no test controls:
one test that fails and then passes alone is said at the end and does not fail the run; two do.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest

MOST_FAILURES = 5
"""If more fail, something is broken: none is run again."""


class Failures:
    """The tests that failed, in order."""

    def __init__(self) -> None:
        self.tests: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test whose set-up, call or end failed."""
        if report.failed and report.nodeid not in self.tests:
            self.tests.append(report.nodeid)


def run_again(failed: Sequence[str], passes: Callable[[str], bool]) -> int:
    """Run tests that failed once more, say how each ended, and return the exit code.

    Args:
        failed: the tests.
        passes: runs a test alone.
    """
    if len(failed) > MOST_FAILURES:
        print(f"{len(failed)} tests failed: none is run again")
        return 1
    results = {test: passes(test) for test in failed}
    print("flaky:" if any(results.values()) else "failed twice:")
    for test, has_passed in results.items():
        print(f"  {test}: failed, then {'passed' if has_passed else 'failed'}")
    return 0 if [*results.values()] == [True] else 1


def _passes(test: str) -> bool:
    print(f"once more, alone: {test}", flush=True)
    return subprocess.run([sys.executable, "-m", "pytest", test], check=False).returncode == 0


def main() -> int:
    failures = Failures()
    code = pytest.main(sys.argv[1:], plugins=[failures])
    return run_again(failures.tests, _passes) if code == pytest.ExitCode.TESTS_FAILED else code


if __name__ == "__main__":
    sys.exit(main())
