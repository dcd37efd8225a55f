"""Errors of the operating system, translated to the store's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tampu.errors import DiskFullError, StoreError


@contextmanager
def translate_os_errors(what: str) -> Iterator[None]:
    """Translate the `OSError` of a block that writes `what`.

    Raises:
        DiskFullError: for a full disk, a quota or a limit of file size.
        StoreError: for any other error of the system.
    """
    try:
        yield
    except OSError as error:
        if DiskFullError.matches(error):
            raise DiskFullError(f"no space left for {what}: free some, then try again") from error
        raise StoreError(f"cannot write {what}: {error.strerror or error}") from error
