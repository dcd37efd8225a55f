"""Writing so that a crash or a power cut at any moment leaves the old or the new, never a half."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tampu.errors import DiskFullError, StoreError


@contextmanager
def storing(what: str) -> Iterator[None]:
    """Turn the system's errors of a block that writes into ours.

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


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, private to their owner, and make them last."""
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    for parent in reversed(missing):
        with suppress(FileExistsError):
            parent.mkdir(mode=0o700)
            sync_folder(parent.parent)


def sync_folder(folder: Path) -> None:
    """Make names in a folder last."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, content: bytes | memoryview) -> None:
    """Write all of some bytes: the system may take fewer at a time."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def replace_file(
    path: Path, content: bytes, *, scratch: Path, mode: int = 0o644, is_lasting: bool = True
) -> None:
    """Put a file with this content in place of what was there, all or nothing.

    Args:
        path: the file; its folder exists.
        content: all of it.
        scratch: a folder on the same file system for the file while it grows.
        mode: its permissions.
        is_lasting: whether it must be there after a power cut; if not, it may be old or empty then.

    Raises:
        OSError: use within `storing`.
    """
    growing = scratch / f"tmp-{secrets.token_hex(8)}"
    descriptor = os.open(growing, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            write_all(descriptor, content)
            os.fchmod(descriptor, mode)
            if is_lasting:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        growing.replace(path)
    except BaseException:
        growing.unlink(missing_ok=True)
        raise
    if is_lasting:
        sync_folder(path.parent)
