"""A terminal that shows nothing of what is typed while an answer comes."""

from __future__ import annotations

import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager

_INPUT, _LOCAL = 0, 3  # places in the list that termios gives


@contextmanager
def silent_terminal() -> Iterator[None]:
    """Keep what is typed for the next message, with Enter as Enter; Ctrl-C still interrupts.

    Else the terminal would write it into the answer, and hand on Enter as Ctrl-J.
    """
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    silent = termios.tcgetattr(sys.stdin)
    silent[_INPUT] &= ~termios.ICRNL
    silent[_LOCAL] &= ~termios.ECHO
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
