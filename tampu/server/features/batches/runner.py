"""Runs batches beside live requests: rows in order, a few at a time, with priority `batch`.

Each batch that has not ended has a task. All share the places for rows that run at once, in turn.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Any

import msgspec

from tampu.errors import TampuError
from tampu.ml.atomic_file import atomic_file
from tampu.server.features.batches.files import StoredFile, output_file
from tampu.server.features.batches.input import InputFileError, LineGroup, check_input, grouped
from tampu.server.features.batches.results import ResultQueue
from tampu.server.features.batches.store import Batch, BatchStore, BatchUsage, Ending, Result, Row
from tampu.server.front.caller import Caller, calling
from tampu.server.front.errors import BusyError
from tampu.server.front.in_process import Answer
from tampu.server.front.limiter import Limiter
from tampu.server.front.state import State

logger = logging.getLogger(__name__)

_AT_ONCE = 64  # rows that are read from the database together
_LONGEST_PAUSE_S = 60.0  # the clock may be set
_RETRY_S = 1.0  # before a row that found the server busy is tried again
_NOT_DONE: dict[Ending, tuple[str, str]] = {
    "expired": ("batch_expired", "the completion window ended before this request was done"),
    "cancelled": ("batch_cancelled", "the batch was cancelled before this request was done"),
    "completed": ("not_done", "this request was not done"),
    "failed": ("batch_failed", "the batch failed before this request was done"),
}


class _Details(msgspec.Struct):
    cached_tokens: int = 0


class _Usage(msgspec.Struct):
    """The usage in a response of any route of OpenAI's API."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    prompt_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None


class _Body(msgspec.Struct):
    usage: _Usage | None = None


class BatchRunner:
    """Runs the batches of a store until it is closed."""

    def __init__(
        self,
        state: State,
        store: BatchStore,
        ask: Callable[[str, bytes], Awaitable[Answer]],
        caller_of: Callable[[str], Caller],
        limiter: Limiter,
        *,
        at_once: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Run no batch yet.

        Args:
            state: where files are.
            store: has the batches.
            ask: answers a request to a route, by its path and body.
            caller_of: returns who the owner of a batch is.
            limiter: counts the tokens of keys: a batch waits while its owner has none left.
            at_once: how many rows run at once.
            clock: returns the seconds since 1970.
        """
        self._state, self._store, self._ask, self._clock = state, store, ask, clock
        self._caller_of, self._limiter = caller_of, limiter
        self._at_once = at_once
        self._places = asyncio.Semaphore(at_once)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._rows: dict[str, asyncio.Task[None]] = {}  # what does the rows of each batch

    async def resume(self) -> None:
        """Go on with the batches that an earlier server left."""
        self._places = asyncio.Semaphore(self._at_once)
        if not self._state.exists:
            return
        try:
            for id in await self._store.unfinished():
                self.start(id)
        except BusyError as error:  # as usual, where two servers have the same home folder
            logger.info("batches are run by another server: %s", error)
        except TampuError as error:
            logger.error("no batch is run: %s", error)

    def start(self, id: str) -> None:
        """Run a batch."""
        task = asyncio.create_task(self._run(id))
        self._tasks[id] = task
        task.add_done_callback(lambda done: self._ended(id, done))

    def stop(self, id: str) -> None:
        """Stop the rows of a batch that was cancelled."""
        if id in self._rows:
            self._rows[id].cancel()
        elif id not in self._tasks:
            self.start(id)

    async def close(self) -> None:
        """Stop; rows that run are done again by the next server."""
        tasks = [*self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, id: str) -> None:
        batch = await self._store.get(Caller(), id)
        if batch.status == "validating":
            batch = await self._validate(batch)
        if batch.status == "in_progress":
            batch = await self._go_on(batch)
        if batch.status in ("finalizing", "cancelling"):
            batch = await self._finish(batch)
        logger.info("batch %s: %s", id, batch.status)

    def _ended(self, id: str, task: asyncio.Task[None]) -> None:
        self._tasks.pop(id, None)
        if not task.cancelled() and (error := task.exception()):
            logger.error("batch %s stopped; the next server continues it: %r", id, error)

    async def _validate(self, batch: Batch) -> Batch:
        path = self._state.path(batch.input_file_id)
        try:
            rows, errors = await asyncio.to_thread(check_input, path, batch.endpoint)
        except InputFileError as error:
            rows, errors = [], [error.entry]
        if errors:
            return await self._store.fail(batch.id, errors)
        return await self._store.begin(batch.id, rows)

    async def _go_on(self, batch: Batch) -> Batch:
        """Do the rows that are left, and let the batch have no more."""
        try:
            await self._do_rows(batch)
        except ExceptionGroup as group:
            gone = [each for each in group.exceptions if isinstance(each, InputFileError)]
            if not gone:
                raise
            return await self._store.fail(batch.id, [gone[0].entry])
        is_late = self._clock() >= batch.expires_at
        left = await self._store.waiting(batch, -1, 1)
        ending: Ending = "expired" if is_late and left else "completed"
        return await self._store.finalize(batch.id, ending)

    async def _do_rows(self, batch: Batch) -> None:
        """Do the rows of a batch, until all are done, it is cancelled, or its time is over."""
        task = asyncio.create_task(self._each_row(batch))
        self._rows[batch.id] = task
        try:
            await asyncio.wait({task}, timeout=max(batch.expires_at - self._clock(), 0))
        finally:
            del self._rows[batch.id]
            task.cancel()
            await asyncio.wait({task})
        if not task.cancelled():
            task.result()

    async def _each_row(self, batch: Batch) -> None:
        owner = self._caller_of(batch.owner)
        results = ResultQueue(partial(self._store.record, batch))
        async with results, asyncio.TaskGroup() as group:

            async def do(row: Row, lines: LineGroup) -> None:
                await results.put(await self._do(row, lines, owner), group)

            async for row, lines in self._waiting(batch):
                while wait_s := self._limiter.exhausted_s(owner):
                    await asyncio.sleep(min(wait_s, _LONGEST_PAUSE_S))
                await self._places.acquire()
                task = group.create_task(do(row, lines))
                task.add_done_callback(lambda _: self._places.release())

    async def _waiting(self, batch: Batch) -> AsyncIterator[tuple[Row, LineGroup]]:
        path, last = self._state.path(batch.input_file_id), -1
        while rows := await self._store.waiting(batch, last, _AT_ONCE):
            for several in grouped(rows):
                lines = LineGroup(path, several)
                for row in several:
                    yield row, lines
            last = rows[-1].number

    async def _do(self, row: Row, lines: LineGroup, owner: Caller) -> Result:
        line = await lines.take(row)
        body = bytes(line.body)
        with calling(replace(owner, is_row=True, priority="batch")):
            answer = await self._ask(line.url, body)
            while answer.status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS):
                await asyncio.sleep(_RETRY_S)
                answer = await self._ask(line.url, body)
        response = {
            "status_code": answer.status,
            "request_id": f"req_{secrets.token_hex(12)}",
            "body": msgspec.Raw(answer.body),
        }
        written = _line(row.custom_id, response, None)
        return Result(row, written, _usage(answer), is_error=answer.status != HTTPStatus.OK)

    async def _finish(self, batch: Batch) -> Batch:
        """Write the files of a batch and end it."""
        output = await self._write(batch, is_error=False)
        errors = await self._write(batch, is_error=True)
        return await self._store.finish(batch, output, errors)

    async def _write(self, batch: Batch, *, is_error: bool) -> StoredFile | None:
        """Write the results of one kind, in the order of the input; None: there are none."""
        kind = "error" if is_error else "output"
        name, now = f"{batch.id}_{kind}.jsonl", int(self._clock())
        file = output_file(batch.owner, name, 0, now, batch.output_expires_s)
        path = self._state.path(file.id)
        code, message = _NOT_DONE[batch.ending or "completed"]
        size, last = 0, -1
        with atomic_file(path, mode=0o600) as written:
            while found := await self._store.results(batch, last, _AT_ONCE):
                lines = [
                    _line(custom_id, None, {"code": code, "message": message})
                    if result is None
                    else result
                    for _, custom_id, error, result in found
                    if (result is None or bool(error)) is is_error
                ]
                size += await asyncio.to_thread(written.write, b"".join(lines))
                last = found[-1][0]
        if not size:
            await asyncio.to_thread(path.unlink)
            return None
        return msgspec.structs.replace(file, bytes=size)


def _line(custom_id: str, response: object, error: object) -> bytes:
    found: dict[str, Any] = {
        "id": f"batch_req_{secrets.token_hex(12)}",
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }
    return msgspec.json.encode(found) + b"\n"


def _usage(answer: Answer) -> BatchUsage:
    try:
        usage = msgspec.json.decode(answer.body, type=_Body).usage or _Usage()
    except msgspec.DecodeError:
        return BatchUsage()
    details = usage.prompt_tokens_details or usage.input_tokens_details or _Details()
    return BatchUsage(
        usage.prompt_tokens + usage.input_tokens,
        details.cached_tokens,
        usage.completion_tokens + usage.output_tokens,
    )
