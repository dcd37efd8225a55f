"""The end of every command: an exit code, and one line for an error."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from tampu.errors import TampuError

INTERRUPTED = 130


def outcome(work: Callable[[], int], *, is_debug: bool = False) -> int:
    """Run a command and return its exit code; `is_debug` raises errors, for their traceback."""
    try:
        return work()
    except TampuError as error:
        if is_debug:
            raise
        return fail(str(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has ended; Python must not complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if is_debug:
            raise
        return fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def fail(message: str) -> int:
    """Print an error and return its exit code."""
    print(f"Error: {message}", file=sys.stderr)
    return 2
