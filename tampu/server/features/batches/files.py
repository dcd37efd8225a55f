"""Files that clients upload, and those that batches write: rows in the database, bytes on disk."""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from tampu.errors import NotFoundError, RequestError
from tampu.ml.atomic_file import AtomicFile, atomic_file
from tampu.server.front.caller import Caller
from tampu.server.front.errors import BodyTooLargeError
from tampu.server.front.pagination import Page
from tampu.server.front.state import State, disk_error
from tampu.settings.server_settings import ServerSettings

UPLOADED, OUTPUT = "batch", "batch_output"
UNFINISHED = "('validating', 'in_progress', 'finalizing', 'cancelling')"
_CURRENT = "(expires_at IS NULL OR expires_at > ?)"
_MAX_NAME = 255


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file, as the database has it; see OpenAI's `FileObject`."""

    id: str
    owner: str
    purpose: str
    filename: str
    bytes: int
    created_at: int
    expires_at: int | None

    def described(self) -> dict[str, Any]:
        """Return the file as OpenAI's API describes it."""
        found = {
            "id": self.id,
            "object": "file",
            "bytes": self.bytes,
            "created_at": self.created_at,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
        }
        return found if self.expires_at is None else found | {"expires_at": self.expires_at}


class NoSuchFileError(NotFoundError):
    """There is no such file or batch, or the caller may not see it."""


class Upload:
    """A file that is being written; it is there after `commit`, and gone without."""

    def __init__(self, file: AtomicFile, limit: int) -> None:
        self._file, self._limit = file, limit
        self.bytes = 0

    async def write(self, piece: bytes) -> None:
        """Write a piece.

        Raises:
            BodyTooLargeError: if the file becomes too large.
            StoreError: if it cannot be written.
        """
        self.bytes += len(piece)
        if self.bytes > self._limit:
            raise BodyTooLargeError(f"the file is larger than {self._limit} bytes (MAX_FILE_SIZE)")
        try:
            await asyncio.to_thread(self._file.write, piece)
        except OSError as error:
            raise disk_error(error, "the folder of files") from error


class FileStore:
    """The files of a server."""

    def __init__(
        self, state: State, limits: ServerSettings, clock: Callable[[], float] = time.time
    ) -> None:
        """Keep files in this state; `clock` returns the seconds since 1970."""
        self._state, self._limits, self._clock = state, limits, clock

    async def add(
        self, caller: Caller, receive: Callable[[Upload], Awaitable[tuple[str, int | None]]]
    ) -> StoredFile:
        """Store an uploaded file.

        Args:
            caller: whose it is.
            receive: writes it; returns its name and the seconds that it is kept, None: forever.

        Raises:
            RequestError: if it is too large, or too many files are kept.
        """
        id = _new_id()
        await self._delete(self._expired)
        path = await self._state.run(lambda db: self._checked(db, id))
        with ExitStack() as stack:
            try:
                upload = Upload(
                    stack.enter_context(atomic_file(path, mode=0o600)), self._limits.max_file_bytes
                )
                filename, expires_s = await receive(upload)
                await asyncio.to_thread(stack.close)
            except OSError as error:
                raise disk_error(error, "the folder of files") from error
        now = int(self._clock())
        file = StoredFile(
            id=id,
            owner=caller.name,
            purpose=UPLOADED,
            filename=_label(filename),
            bytes=upload.bytes,
            created_at=now,
            expires_at=None if expires_s is None else now + expires_s,
        )
        await self._state.run(lambda db: insert_file(db, file))
        return file

    def _checked(self, db: sqlite3.Connection, id: str) -> Path:
        """Return where a new file is written, if there is room for it."""
        count, total = db.execute("SELECT COUNT(*), COALESCE(SUM(bytes), 0) FROM files").fetchone()
        if count >= self._limits.max_files:
            raise RequestError(f"{count} files are kept, the maximum (MAX_FILES): delete some")
        if total >= self._limits.max_files_bytes:
            raise RequestError(f"the files have {total} bytes, over MAX_FILES_SIZE: delete some")
        return self._state.path(id)

    async def get(self, caller: Caller, id: str) -> StoredFile:
        """Return a file.

        Raises:
            NoSuchFileError: if there is none.
        """
        return await self._state.run(lambda db: self.found(db, caller, id))

    def found(self, db: sqlite3.Connection, caller: Caller, id: str) -> StoredFile:
        """Do the same, within a transaction."""
        query = f"SELECT * FROM files WHERE id = ? AND {_CURRENT}"
        row = db.execute(query, (id, self._clock())).fetchone()
        if row is None or not caller.may_see(row["owner"]):
            raise NoSuchFileError(f"file {id[:100]!r} not found")
        return _stored(row)

    async def page(
        self, caller: Caller, page: Page, purpose: str | None
    ) -> tuple[list[StoredFile], bool]:
        """Return a page of files, and whether there are more."""

        def work(db: sqlite3.Connection) -> tuple[list[StoredFile], bool]:
            where, values = _CURRENT, list[object]([self._clock()])
            if purpose is not None:
                where, values = f"{where} AND purpose = ?", [*values, purpose]
            rows, has_more = page.select(db, "files", caller, where, values)
            return [_stored(row) for row in rows], has_more

        return await self._state.run(work)

    async def delete(self, caller: Caller, id: str) -> None:
        """Delete a file.

        Raises:
            NoSuchFileError: if there is none.
            RequestError: if a batch still reads it.
        """

        def chosen(db: sqlite3.Connection) -> list[str]:
            self.found(db, caller, id)
            query = f"SELECT id FROM batches WHERE input_file_id = ? AND status IN {UNFINISHED}"
            batch = db.execute(query, (id,)).fetchone()
            if batch is not None:
                raise RequestError(f"the batch {batch['id']} reads this file: cancel it first")
            return [id]

        await self._delete(chosen)

    async def open(self, caller: Caller, id: str) -> tuple[StoredFile, BinaryIO]:
        """Return a file, and its content.

        Raises:
            NoSuchFileError: if there is none, or somebody deleted it from the disk.
            StoreError: if it cannot be read.
        """

        def work(db: sqlite3.Connection) -> tuple[StoredFile, BinaryIO]:
            file = self.found(db, caller, id)
            try:
                return file, self._state.path(id).open("rb")
            except FileNotFoundError:
                raise NoSuchFileError(f"the content of file {id} is gone from the disk") from None

        return await self._state.run(work)

    async def _delete(self, choose: Callable[[sqlite3.Connection], list[str]]) -> None:
        """Delete files: first the rows, since files without rows are removed at the next start."""

        def work(db: sqlite3.Connection) -> list[Path]:
            ids = choose(db)
            db.executemany("DELETE FROM files WHERE id = ?", [(id,) for id in ids])
            return [self._state.path(id) for id in ids]

        for path in await self._state.run(work):
            await asyncio.to_thread(path.unlink, missing_ok=True)

    def _expired(self, db: sqlite3.Connection) -> list[str]:
        query = (
            f"SELECT id FROM files WHERE NOT {_CURRENT} AND id NOT IN "
            f"(SELECT input_file_id FROM batches WHERE status IN {UNFINISHED})"
        )
        return [row["id"] for row in db.execute(query, (self._clock(),))]


def insert_file(db: sqlite3.Connection, file: StoredFile) -> None:
    """Add a file that is on disk."""
    values = msgspec.structs.asdict(file)
    names, marks = ", ".join(values), ", ".join("?" * len(values))
    db.execute(f"INSERT INTO files ({names}) VALUES ({marks})", tuple(values.values()))


def output_file(owner: str, filename: str, size: int, now: int, kept_s: int | None) -> StoredFile:
    """Return a file that a batch is about to write."""
    return StoredFile(
        id=_new_id(),
        owner=owner,
        purpose=OUTPUT,
        filename=filename,
        bytes=size,
        created_at=now,
        expires_at=None if kept_s is None else now + kept_s,
    )


def _new_id() -> str:
    return f"file-{secrets.token_hex(12)}"


def _stored(row: sqlite3.Row) -> StoredFile:
    return msgspec.convert({name: row[name] for name in row.keys() if name != "number"}, StoredFile)  # noqa: SIM118


def _label(filename: str) -> str:
    """Return a file's name without its folder and control characters; it names nothing on disk."""
    name = filename.replace("\\", "/").rpartition("/")[2]
    return "".join(letter if letter.isprintable() else "?" for letter in name)[:_MAX_NAME] or "file"
