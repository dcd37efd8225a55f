"""The server's state on disk: one SQLite file and a folder, readable by its user only.

All work with the database runs on one thread, one transaction at a time. The folder is held by a
lock, so that no two servers run the same batches; the kernel drops the lock with its process.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tampu.errors import DiskFullError, StoreError
from tampu.server.front.errors import BusyError

logger = logging.getLogger(__name__)

T = TypeVar("T")

DATABASE = "state.sqlite3"
_CACHE_KIB = 256  # SQLite's own 2 MB only repeat what the page cache has


@dataclass(frozen=True, slots=True)
class Tables:
    """Tables of a feature.

    Attributes:
        version: of the database that has them first.
        statements: make them in a database of the version before.
        opened: is called with each connection, and the folder of files.
    """

    version: int
    statements: str
    opened: Callable[[sqlite3.Connection, Path], None] = lambda _, __: None


class State:
    """The database and the folder; made at the first use."""

    def __init__(self, folder: Path | None, tables: Sequence[Tables] = ()) -> None:
        """Keep these tables in this folder; None: in a temporary one, until `close`."""
        self._folder = folder
        self._tables = sorted(tables, key=lambda each: each.version)
        self._is_temporary = folder is None
        self._executor: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None
        self._lock = -1

    @property
    def exists(self) -> bool:
        """Whether an earlier server has kept something."""
        return self._folder is not None and (self._folder / DATABASE).exists()

    @property
    def is_writable(self) -> bool:
        """Whether the folder can be written, or made; nothing is made now."""
        if self._folder is None:
            return True
        places = (self._folder, *self._folder.parents)
        nearest = next(each for each in places if os.access(each, os.F_OK))
        return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Return what `work` does with the database, in a transaction of its own.

        Raises:
            TampuError: if the database cannot be used, or as `work`; nothing has changed.
        """
        running = asyncio.get_running_loop().run_in_executor(self._thread(), self._transact, work)
        return await asyncio.shield(running)

    def submit(self, work: Callable[[sqlite3.Connection], None]) -> None:
        """Let `work` be done later, in its turn; if it fails, the log has a line."""
        self._thread().submit(self._transact, work).add_done_callback(_log_failure)

    def path(self, name: str) -> Path:
        """Return where a file is; for work within `run`."""
        return self._files() / name

    def check_room(self, size: int) -> None:
        """Do nothing if the disk has so many bytes free; for work within `run`.

        Raises:
            DiskFullError: if it has not.
        """
        if shutil.disk_usage(self._files().parent).free < size:
            raise DiskFullError(f"{DATABASE}: the disk is full")

    async def close(self) -> None:
        """Close the database, after what was submitted; a later use opens it again."""
        if self._executor is not None:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._close)
            self._executor.shutdown()
            self._executor = None

    def _thread(self) -> ThreadPoolExecutor:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="tampu-state")
        return self._executor

    def _transact(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            connection = self._connection or self._open()
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                return work(connection)
        except sqlite3.Error as error:
            # An error that the module raises by itself, not SQLite, has no code.
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
                raise DiskFullError(f"{DATABASE}: the disk is full") from error
            raise StoreError(f"{self._folder}/{DATABASE} cannot be used: {error}") from error
        except OSError as error:
            raise disk_error(error, f"{self._folder}") from error

    def _files(self) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="tampu-state-"))
        return self._folder / "files"

    def _open(self) -> sqlite3.Connection:
        files = self._files()
        files.mkdir(mode=0o700, parents=True, exist_ok=True)
        place = files.parent / DATABASE
        if self._lock < 0:
            self._lock = _locked(files.parent / ".lock")
        os.close(os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(place, isolation_level=None, check_same_thread=False)
        connection.row_factory = sqlite3.Row
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            self._prepare(connection, place)
            for each in self._tables:
                each.opened(connection, files)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _prepare(self, connection: sqlite3.Connection, place: Path) -> None:
        """Make the tables, or check that they are of this version."""
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        newest = max((each.version for each in self._tables), default=version)
        if version > newest:
            raise StoreError(f"{place} is of a newer version of tampu: set another TAMPU_STATE")
        added = " ".join(each.statements for each in self._tables if each.version > version)
        if added:
            connection.executescript(f"BEGIN; {added} PRAGMA user_version = {newest}; COMMIT;")

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
        if self._is_temporary and self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def _log_failure(done: Future[None]) -> None:
    if (error := done.exception()) is not None:
        logger.error("not kept: %s", error)


def disk_error(error: OSError, what: str) -> StoreError:
    """Return an error of the disk as one of ours."""
    if DiskFullError.matches(error):
        return DiskFullError(f"{what}: the disk is full")
    return StoreError(f"{what} cannot be used: {error.strerror or error}")


def _locked(place: Path) -> int:
    """Return the descriptor of a lock that this process holds.

    Raises:
        BusyError: if another server has it.
    """
    descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        message = f"another server uses {place.parent}: set TAMPU_STATE to a folder of its own"
        raise BusyError(message) from None
    return descriptor
