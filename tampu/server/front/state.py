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
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from tampu.errors import DiskFullError, StoreError
from tampu.server.front.errors import BusyError

logger = logging.getLogger(__name__)

T = TypeVar("T")

DATABASE = "state.sqlite3"
_CACHE_KIB = 256  # SQLite's own 2 MB only repeat what the page cache has
_SCHEMA = """
CREATE TABLE files (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    purpose TEXT NOT NULL,
    filename TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER
);
CREATE TABLE batches (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    status TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    completion_window TEXT NOT NULL,
    metadata TEXT,
    input_file_id TEXT NOT NULL,
    output_file_id TEXT,
    error_file_id TEXT,
    errors TEXT,
    output_expires_s INTEGER,
    ending TEXT,
    total INTEGER NOT NULL DEFAULT 0,
    completed INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    input_tokens INTEGER NOT NULL DEFAULT 0,
    cached_tokens INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    in_progress_at INTEGER,
    finalizing_at INTEGER,
    completed_at INTEGER,
    failed_at INTEGER,
    expired_at INTEGER,
    cancelling_at INTEGER,
    cancelled_at INTEGER
);
CREATE TABLE rows (
    batch INTEGER NOT NULL REFERENCES batches (number),
    number INTEGER NOT NULL,
    custom_id TEXT NOT NULL,
    start INTEGER NOT NULL,
    length INTEGER NOT NULL,
    is_error INTEGER,
    result BLOB,
    PRIMARY KEY (batch, number)
) WITHOUT ROWID;
CREATE TABLE usage (
    day TEXT NOT NULL,
    key TEXT NOT NULL,
    model TEXT NOT NULL,
    requests INTEGER NOT NULL,
    prompt_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    generated_tokens INTEGER NOT NULL,
    PRIMARY KEY (day, key, model)
) WITHOUT ROWID;
"""
_RESPONSES = """
CREATE TABLE responses (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    previous TEXT,
    used_at INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    input BLOB NOT NULL,
    response BLOB NOT NULL
);
CREATE INDEX responses_used ON responses (used_at, bytes);
"""
_CONVERSATIONS = """
CREATE TABLE conversations (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    metadata TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    used_at INTEGER NOT NULL,
    bytes INTEGER NOT NULL
);
CREATE TABLE items (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    conversation INTEGER NOT NULL REFERENCES conversations (number),
    id TEXT NOT NULL,
    item BLOB NOT NULL,
    UNIQUE (conversation, id)
);
"""
# The ids of the items of each response, its input and its output, for references to them.
_RESPONSE_ITEMS = """
CREATE TABLE response_items (
    id TEXT NOT NULL,
    response INTEGER NOT NULL REFERENCES responses (number),
    PRIMARY KEY (id, response)
) WITHOUT ROWID;
CREATE INDEX response_items_of ON response_items (response);
CREATE INDEX items_by_id ON items (id);
CREATE TRIGGER response_deleted AFTER DELETE ON responses BEGIN
    DELETE FROM response_items WHERE response = old.number;
END;
INSERT OR IGNORE INTO response_items
    SELECT json_extract(value, '$.id'), number FROM responses, json_each(CAST(input AS TEXT))
    UNION
    SELECT json_extract(value, '$.id'), number
    FROM responses, json_each(CAST(response AS TEXT), '$.output');
"""
_ADDED = (_SCHEMA, _RESPONSES, _CONVERSATIONS, _RESPONSE_ITEMS)  # by each version
_VERSION = len(_ADDED)


class State:
    """The database and the folder; made at the first use."""

    def __init__(self, folder: Path | None) -> None:
        """Keep everything in this folder; None: in a temporary one, until `close`."""
        self._folder = folder
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
            _prepare(connection, place)
            known = {row["id"] for row in connection.execute("SELECT id FROM files")}
        except BaseException:
            connection.close()
            raise
        for path in files.iterdir():  # what a killed server was writing
            if path.name not in known:
                path.unlink()
        self._connection = connection
        return connection

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


def _prepare(connection: sqlite3.Connection, place: Path) -> None:
    """Make the tables, or check that they are of this version."""
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version < _VERSION:
        added = " ".join(_ADDED[version:])
        connection.executescript(f"BEGIN; {added} PRAGMA user_version = {_VERSION}; COMMIT;")
    elif version > _VERSION:
        raise StoreError(f"{place} is of a newer version of tampu: set another TAMPU_STATE")


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
