"""Limits of work and time for rendering one template, in either language."""

from __future__ import annotations

import time
from collections.abc import Callable

MAX_SECONDS = 2.0
MAX_OUTPUT = 8 << 20
MAX_WORK = 64 << 20
MAX_WIDTH = 1_000


class Budget:
    """What is left to one rendering, on one thread: time is its CPU time, whatever else runs.

    Each method raises what `error` makes of a reason when there is nothing left.
    """

    def __init__(self, error: Callable[[str], Exception]) -> None:
        self._error = error
        self._deadline = time.thread_time() + MAX_SECONDS
        self._output = MAX_OUTPUT
        self._work = MAX_WORK

    def check_time(self) -> None:
        """Fail when the time is up."""
        if time.thread_time() > self._deadline:
            raise self._error(f"it runs for more than {MAX_SECONDS:g} s")

    def spend_work(self, characters: int) -> None:
        """Count the characters of a string or list that is about to be made."""
        self._work -= characters
        if self._work < 0:
            raise self._error(f"it makes strings of more than {MAX_WORK} characters")

    def spend_output(self, characters: int) -> None:
        """Count the characters written."""
        self._output -= characters
        if self._output < 0:
            raise self._error(f"it writes more than {MAX_OUTPUT} characters")
