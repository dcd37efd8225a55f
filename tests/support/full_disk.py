"""A disk that is full at one write of some work, whichever it is: bytes, names, sizes, flushes."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import pytest

from tampu.errors import DiskFullError, ModelFileError, StoreError

CALLS = (
    "copy_file_range", "fchmod", "fdatasync", "fsync", "ftruncate", "link", "mkdir", "open",
    "posix_fallocate", "pwrite", "pwritev", "replace", "sendfile", "symlink", "write", "writev",
)  # fmt: skip
FULL = (errno.ENOSPC, errno.EDQUOT)


class FullDisk:
    """Counts the writes and lets one of them fail.

    Attributes:
        writes: how many there were.
    """

    def __init__(self, patch: pytest.MonkeyPatch, fails_at: int, error: int = errno.ENOSPC) -> None:
        self.writes = 0
        self._error = error
        self._fails_at = fails_at
        for name in CALLS:
            patch.setattr(os, name, self._instead_of(name, getattr(os, name)))

    def _instead_of(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def write(*arguments: Any, **named: Any) -> Any:
            if name != "open" or arguments[1] & os.O_CREAT:
                self.writes += 1
                if self.writes == self._fails_at:
                    raise OSError(self._error, os.strerror(self._error))
            return call(*arguments, **named)

        return write


def fail_at_each_write(
    work: Callable[[], object], check: Callable[[], None], error: int = errno.ENOSPC
) -> int:
    """Do some work again and again, each time with the disk full one write later.

    Args:
        work: raises DiskFullError when a write fails, or for another error of the system a
            StoreError or ModelFileError with its words; other errors go through.
        check: called after each failure.
        error: what the system answers instead of a full disk.

    Returns:
        How many writes the work has. The last time none failed.
    """
    for fails_at in range(1, 10_000):
        with pytest.MonkeyPatch.context() as patch:
            disk = FullDisk(patch, fails_at, error)
            try:
                work()
                told = ""
            except DiskFullError as failure:
                told = f"full: {failure}"
            except (StoreError, ModelFileError) as failure:
                told = str(failure)
        if not told:
            assert disk.writes < fails_at
            return disk.writes
        assert told.startswith("full: ") == (error in FULL)
        assert ("no space left" if error in FULL else os.strerror(error)) in told
        check()
    raise AssertionError("the work has no end")
