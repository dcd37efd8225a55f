r"""Batches and their rows in the database: each change of rows or a status is one transaction.

    validating -> in_progress -> finalizing -> completed
              \-> failed     \-> finalizing -> expired
                              \-> finalizing -> failed (the input file is gone)
                              \-> cancelling -> cancelled

A row has a result or none. It gets its result in the transaction that counts it, so that after a
crash at any moment the rows without a result are those to be done. Results that come within a
moment share a transaction (`tampu.server.features.batches.results`).
"""

from __future__ import annotations

import json
import secrets
import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from tampu.errors import RequestError
from tampu.server.features.batches.files import (
    UNFINISHED,
    FileStore,
    NoSuchFileError,
    StoredFile,
    insert_file,
)
from tampu.server.front.caller import Caller
from tampu.server.front.pagination import Page
from tampu.server.front.state import State

MAX_UNFINISHED = 100
Ending: TypeAlias = Literal["completed", "expired", "cancelled", "failed"]


class BatchUsage(msgspec.Struct, frozen=True):
    """Tokens of the responses of a batch."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


class Row(msgspec.Struct, frozen=True):
    """A line of a batch's input file: its number from 0, and where it is in the file."""

    number: int
    custom_id: str
    start: int
    length: int


class Result(msgspec.Struct, frozen=True):
    """The result of a row: a line of the output file, or of the error file."""

    row: Row
    line: bytes
    usage: BatchUsage
    is_error: bool


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch, as the database has it; see OpenAI's `Batch`.

    Attributes:
        ending: the status after `finalizing`.
    """

    number: int
    id: str
    owner: str
    status: str
    endpoint: str
    completion_window: str
    metadata: str | None
    input_file_id: str
    output_file_id: str | None
    error_file_id: str | None
    errors: str | None
    output_expires_s: int | None
    ending: Ending | None
    total: int
    completed: int
    failed: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    created_at: int
    expires_at: int
    in_progress_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None

    def described(self) -> dict[str, Any]:
        """Return the batch as OpenAI's API describes it."""
        found = msgspec.structs.asdict(self)
        hidden = (
            *("number", "owner", "output_expires_s", "ending", "total", "completed", "failed"),
            *("input_tokens", "cached_tokens", "output_tokens"),
        )
        for name in hidden:
            del found[name]
        for name in ("metadata", "errors"):
            found[name] = None if found[name] is None else json.loads(found[name])
        return found | {
            "object": "batch",
            "request_counts": {
                "total": self.total,
                "completed": self.completed,
                "failed": self.failed,
            },
            "usage": {
                "input_tokens": self.input_tokens,
                "input_tokens_details": {"cached_tokens": self.cached_tokens},
                "output_tokens": self.output_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": self.input_tokens + self.output_tokens,
            },
        }


class BatchStore:
    """The batches of a server."""

    def __init__(
        self, state: State, files: FileStore, clock: Callable[[], float] = time.time
    ) -> None:
        """Keep batches in this state; `clock` returns the seconds since 1970."""
        self._state, self._files, self._clock = state, files, clock

    async def create(
        self,
        caller: Caller,
        *,
        endpoint: str,
        input_file_id: str,
        window: tuple[str, float],
        metadata: dict[str, str] | None,
        output_expires_s: int | None,
    ) -> Batch:
        """Add a batch that is to be validated; `window` is its time as a text and in seconds.

        Raises:
            NoSuchFileError: if the file does not exist.
            RequestError: if the file is not an input, or too many batches are unfinished.
        """
        now = int(self._clock())
        values = {
            "id": f"batch_{secrets.token_hex(12)}",
            "owner": caller.name,
            "status": "validating",
            "endpoint": endpoint,
            "completion_window": window[0],
            "metadata": None if metadata is None else json.dumps(metadata),
            "input_file_id": input_file_id,
            "output_expires_s": output_expires_s,
            "created_at": now,
            "expires_at": now + int(window[1]),
        }

        def work(db: sqlite3.Connection) -> Batch:
            file = self._files.found(db, caller, input_file_id)
            if file.purpose != "batch":
                raise RequestError(f"input_file_id: the purpose of {file.id} is not batch")
            query = f"SELECT COUNT(*) FROM batches WHERE status IN {UNFINISHED}"
            if db.execute(query).fetchone()[0] >= MAX_UNFINISHED:
                raise RequestError(f"{MAX_UNFINISHED} batches are not finished, the maximum")
            names, marks = ", ".join(values), ", ".join("?" * len(values))
            query = f"INSERT INTO batches ({names}) VALUES ({marks})"
            db.execute(query, tuple(values.values()))
            return _found(db, str(values["id"]))

        return await self._state.run(work)

    async def get(self, caller: Caller, id: str) -> Batch:
        """Return a batch.

        Raises:
            NoSuchFileError: if there is none.
        """
        return await self._state.run(lambda db: _seen(db, caller, id))

    async def page(self, caller: Caller, page: Page) -> tuple[list[Batch], bool]:
        """Return a page of batches, and whether there are more."""

        def work(db: sqlite3.Connection) -> tuple[list[Batch], bool]:
            rows, has_more = page.select(db, "batches", caller, "1", [])
            return [_batch(row) for row in rows], has_more

        return await self._state.run(work)

    async def cancel(self, caller: Caller, id: str) -> Batch:
        """Let a batch end; a second call does nothing.

        Raises:
            NoSuchFileError: if there is none.
            RequestError: if it has ended.
        """

        def work(db: sqlite3.Connection) -> Batch:
            batch = _seen(db, caller, id)
            if batch.status in ("validating", "in_progress"):
                self._set(db, batch.number, "cancelling", ending="cancelled")
            elif batch.ending != "cancelled":
                raise RequestError(f"a batch that is {batch.status} cannot be cancelled")
            return _found(db, id)

        return await self._state.run(work)

    async def unfinished(self) -> list[str]:
        """Return the ids of the batches that have not ended, the oldest first."""

        def work(db: sqlite3.Connection) -> list[str]:
            query = f"SELECT id FROM batches WHERE status IN {UNFINISHED} ORDER BY number"
            return [row["id"] for row in db.execute(query)]

        return await self._state.run(work)

    async def begin(self, id: str, rows: Sequence[Row]) -> Batch:
        """Add the rows of a batch that is valid, unless it was cancelled."""

        def work(db: sqlite3.Connection) -> Batch:
            batch = _found(db, id)
            if batch.status == "validating":
                db.executemany(
                    "INSERT INTO rows (batch, number, custom_id, start, length) "
                    "VALUES (?, ?, ?, ?, ?)",
                    [(batch.number, r.number, r.custom_id, r.start, r.length) for r in rows],
                )
                db.execute("UPDATE batches SET total = ? WHERE id = ?", (len(rows), id))
                self._set(db, batch.number, "in_progress")
            return _found(db, id)

        return await self._state.run(work)

    async def fail(self, id: str, errors: Sequence[dict[str, Any]]) -> Batch:
        """Let a batch fail with these errors, unless it was cancelled; rows that are done stay."""

        def work(db: sqlite3.Connection) -> Batch:
            batch = _found(db, id)
            if batch.status in ("validating", "in_progress"):
                text = json.dumps({"object": "list", "data": errors})
                db.execute("UPDATE batches SET errors = ? WHERE id = ?", (text, id))
            if batch.status == "validating":
                self._set(db, batch.number, "failed")
            elif batch.status == "in_progress":
                self._set(db, batch.number, "finalizing", ending="failed")
            return _found(db, id)

        return await self._state.run(work)

    async def waiting(self, batch: Batch, after: int, limit: int) -> list[Row]:
        """Return rows without a result, those after the one with this number."""

        def work(db: sqlite3.Connection) -> list[Row]:
            found = db.execute(
                "SELECT number, custom_id, start, length FROM rows "
                "WHERE batch = ? AND number > ? AND result IS NULL ORDER BY number LIMIT ?",
                (batch.number, after, limit),
            )
            return [Row(*row) for row in found]

        return await self._state.run(work)

    async def record(self, batch: Batch, results: Sequence[Result]) -> None:
        """Give rows their results, and count them; a row that has one keeps it."""

        def work(db: sqlite3.Connection) -> None:
            for each in results:
                changed = db.execute(
                    "UPDATE rows SET result = ?, is_error = ? "
                    "WHERE batch = ? AND number = ? AND result IS NULL",
                    (each.line, each.is_error, batch.number, each.row.number),
                ).rowcount
                if changed:
                    counter = "failed" if each.is_error else "completed"
                    db.execute(
                        f"UPDATE batches SET {counter} = {counter} + 1, "
                        "input_tokens = input_tokens + ?, cached_tokens = cached_tokens + ?, "
                        "output_tokens = output_tokens + ? WHERE number = ?",
                        (*msgspec.structs.astuple(each.usage), batch.number),
                    )

        await self._state.run(work)

    async def finalize(self, id: str, ending: Ending) -> Batch:
        """Let a batch have no more rows done; one that is cancelled stays so."""

        def work(db: sqlite3.Connection) -> Batch:
            batch = _found(db, id)
            if batch.status == "in_progress":
                self._set(db, batch.number, "finalizing", ending=ending)
            return _found(db, id)

        return await self._state.run(work)

    async def results(
        self, batch: Batch, after: int, limit: int
    ) -> list[tuple[int, str, bool | None, bytes | None]]:
        """Return number, custom id, whether it is an error, and the result of rows in order."""

        def work(db: sqlite3.Connection) -> list[tuple[int, str, bool | None, bytes | None]]:
            found = db.execute(
                "SELECT number, custom_id, is_error, result FROM rows "
                "WHERE batch = ? AND number > ? ORDER BY number LIMIT ?",
                (batch.number, after, limit),
            )
            return [tuple(row) for row in found]

        return await self._state.run(work)

    async def finish(
        self, batch: Batch, output: StoredFile | None, errors: StoredFile | None
    ) -> Batch:
        """End a batch, with its files; its rows are deleted."""

        def work(db: sqlite3.Connection) -> Batch:
            for file in (output, errors):
                if file is not None:
                    insert_file(db, file)
            ids = [None if file is None else file.id for file in (output, errors)]
            failed = db.execute(
                "SELECT COUNT(*) FROM rows WHERE batch = ? AND result IS NULL", (batch.number,)
            ).fetchone()[0]
            db.execute(
                "UPDATE batches SET output_file_id = ?, error_file_id = ?, failed = failed + ? "
                "WHERE number = ?",
                (*ids, failed, batch.number),
            )
            db.execute("DELETE FROM rows WHERE batch = ?", (batch.number,))
            self._set(db, batch.number, batch.ending or "completed")
            return _found(db, batch.id)

        return await self._state.run(work)

    def _set(
        self, db: sqlite3.Connection, number: int, status: str, ending: Ending | None = None
    ) -> None:
        """Set a batch's status, and when it got it."""
        db.execute(
            f"UPDATE batches SET status = ?, {status}_at = ?, ending = COALESCE(?, ending) "
            "WHERE number = ?",
            (status, int(self._clock()), ending, number),
        )


def _seen(db: sqlite3.Connection, caller: Caller, id: str) -> Batch:
    batch = _found(db, id)
    if not caller.may_see(batch.owner):
        raise NoSuchFileError(f"batch {id[:100]!r} not found")
    return batch


def _found(db: sqlite3.Connection, id: str) -> Batch:
    row = db.execute("SELECT * FROM batches WHERE id = ?", (id,)).fetchone()
    if row is None:
        raise NoSuchFileError(f"batch {id[:100]!r} not found")
    return _batch(row)


def _batch(row: sqlite3.Row) -> Batch:
    return msgspec.convert(dict(zip(row.keys(), row, strict=True)), Batch)
