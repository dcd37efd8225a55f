"""Stored responses of OpenAI's API, which later ones can continue.

A response is kept with the items of its own input and the id of the one before it. Those of a
conversation are used together, and the conversations that were not used for longest go first.
"""

from __future__ import annotations

import logging
import secrets
import sqlite3
import time
from collections.abc import Callable, Collection
from typing import Any

import msgspec

from tampu.errors import NotFoundError, RequestError, StoreError, TampuError
from tampu.server.front.caller import Caller
from tampu.server.front.errors import BusyError
from tampu.server.front.state import State

logger = logging.getLogger(__name__)

_ROOM = 1 << 20  # bytes that must be free: few responses have more
KEPT_S = 30 * 86_400  # after the last use

Item = dict[str, Any]

# A response and all that are before it, the last one first.
_CHAIN = """
WITH RECURSIVE chain (number, id, owner, previous, input, response, distance) AS (
    SELECT number, id, owner, previous, input, response, 0 FROM responses WHERE id = ?
    UNION ALL
    SELECT r.number, r.id, r.owner, r.previous, r.input, r.response, distance + 1
    FROM responses AS r JOIN chain ON r.id = chain.previous
)
SELECT * FROM chain ORDER BY distance
"""


class NoSuchResponseError(NotFoundError):
    """There is no such response, or the caller may not see it."""


class ResponseStore:
    """The responses that are kept."""

    def __init__(
        self, state: State, max_bytes: int, clock: Callable[[], float] = time.time
    ) -> None:
        """Keep at most so many bytes in this state; 0: nothing. `clock` returns seconds."""
        self._state, self._max_bytes, self._clock = state, max_bytes, clock

    async def keeps(self, caller: Caller, *, wanted: bool | None) -> bool:
        """Return whether a response is kept: by default it is, a row of a batch is not.

        Raises:
            TampuError: if it is to be kept, and cannot be.
        """
        if not self._max_bytes or wanted is False or (wanted is None and caller.is_row):
            return False
        try:
            await self._state.run(lambda _: self._state.check_room(_ROOM))
        except (BusyError, StoreError):  # in use by another server, damaged, or the disk is full
            if wanted:
                raise
            return False
        return True

    async def add(self, caller: Caller, given: list[Item], response: dict[str, Any]) -> bool:
        """Keep a response with the items of its input, before anything that is asked later.

        Return whether it is kept: it may be too large, or the disk full, which the log says.
        """
        now = int(self._clock())
        texts = msgspec.json.encode(given), msgspec.json.encode(response)
        size = sum(map(len, texts))

        def work(db: sqlite3.Connection) -> bool:
            db.execute("DELETE FROM responses WHERE used_at <= ?", (now - KEPT_S,))
            total = db.execute("SELECT TOTAL(bytes) FROM responses").fetchone()[0]
            while total + size > self._max_bytes:
                query = "SELECT number, bytes FROM responses ORDER BY used_at, number LIMIT 1"
                oldest = db.execute(query).fetchone()
                if oldest is None:
                    return False  # it is larger than all that may be kept
                db.execute("DELETE FROM responses WHERE number = ?", (oldest["number"],))
                total -= oldest["bytes"]
            db.execute(
                "INSERT INTO responses (id, owner, previous, used_at, bytes, input, response) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (response["id"], caller.name, response["previous_response_id"], now, size, *texts),
            )
            number = db.execute("SELECT last_insert_rowid()").fetchone()[0]
            ids = {(item["id"], number) for item in (*given, *response["output"])}
            db.executemany("INSERT INTO response_items (id, response) VALUES (?, ?)", ids)
            return True

        try:
            return await self._state.run(work)
        except TampuError as error:
            logger.error("response not kept: %s", error)
            return False

    async def get(self, caller: Caller, id: str) -> msgspec.Raw:
        """Return a response as JSON.

        Raises:
            NoSuchResponseError: if there is none.
        """
        return await self._state.run(lambda db: msgspec.Raw(self._seen(db, caller, id)["response"]))

    async def delete(self, caller: Caller, id: str) -> None:
        """Delete a response; those after it can then not be gone on from.

        Raises:
            NoSuchResponseError: if there is none.
        """

        def work(db: sqlite3.Connection) -> None:
            number = self._seen(db, caller, id)["number"]
            db.execute("DELETE FROM responses WHERE number = ?", (number,))

        await self._state.run(work)

    async def input_items(self, caller: Caller, id: str) -> list[Item]:
        """Return the items that a response was made from, those of the conversation first.

        Raises:
            NoSuchResponseError: if there is none.
            RequestError: if an earlier one of the conversation is not there.
        """

        def work(db: sqlite3.Connection) -> list[Item]:
            self._seen(db, caller, id)
            last, *earlier = self._chain(db, caller, id)
            return [*_items(earlier), *_decoded(last["input"])]

        return await self._state.run(work)

    async def find_items(self, caller: Caller, ids: Collection[str]) -> dict[str, Item]:
        """Return the items with these ids that responses have, by id; the responses count as used.

        Those that no response has are left out.

        Raises:
            RequestError: if this server keeps no responses.
        """
        if not self._max_bytes:
            raise RequestError(
                "input: item_reference is not supported: this server keeps no responses "
                "(MAX_RESPONSES_SIZE)"
            )
        now = int(self._clock())
        query = (
            "SELECT r.* FROM response_items AS i JOIN responses AS r ON r.number = i.response "
            "WHERE i.id = ? AND r.used_at > ? ORDER BY r.number DESC"
        )

        def work(db: sqlite3.Connection) -> dict[str, Item]:
            found: dict[str, Item] = {}
            for id in ids:
                if id in found:
                    continue
                for row in db.execute(query, (id, now - KEPT_S)):
                    if caller.may_see(row["owner"]):
                        items = {item["id"]: item for item in _items([row])}
                        found |= {each: items[each] for each in ids if each in items}
                        use = "UPDATE responses SET used_at = ? WHERE number = ?"
                        db.execute(use, (now, row["number"]))
                        break
            return found

        return await self._state.run(work)

    async def conversation(self, caller: Caller, id: str) -> list[Item]:
        """Return all items up to the end of a response, for one that continues it.

        Raises:
            RequestError: if it or an earlier one is not there.
        """
        if not self._max_bytes:
            raise RequestError(
                "previous_response_id is not supported: this server keeps no responses "
                "(MAX_RESPONSES_SIZE)"
            )
        now = int(self._clock())

        def work(db: sqlite3.Connection) -> list[Item]:
            chain = self._chain(db, caller, id)
            used = [(now, row["number"]) for row in chain]
            db.executemany("UPDATE responses SET used_at = ? WHERE number = ?", used)
            return _items(chain)

        return await self._state.run(work)

    def _seen(self, db: sqlite3.Connection, caller: Caller, id: str) -> sqlite3.Row:
        row: sqlite3.Row | None = db.execute(
            "SELECT * FROM responses WHERE id = ? AND used_at > ?",
            (id, int(self._clock()) - KEPT_S),
        ).fetchone()
        if row is None or not caller.may_see(row["owner"]):
            raise NoSuchResponseError(f"response {id[:100]!r} not found")
        return row

    def _chain(self, db: sqlite3.Connection, caller: Caller, id: str) -> list[sqlite3.Row]:
        """Return a response and those before it, the last one first."""
        found = db.execute(_CHAIN, (id,)).fetchall()
        missing = found[-1]["previous"] if found else id
        if missing is not None or not all(caller.may_see(row["owner"]) for row in found):
            name = (missing or id)[:100]
            raise RequestError(f"previous_response_id: response {name!r} not found")
        return found


def with_ids(given: str | list[Item] | None) -> list[Item]:
    """Return an input as items with ids, in the form in which they are listed."""
    if not isinstance(given, list):
        given = [{"role": "user", "content": given or ""}]
    return [_with_id(item) for item in given]


def _with_id(item: Item) -> Item:
    kind = item.get("type", "message")
    content = item.get("content")
    if kind == "message" and isinstance(content, str):
        part = "output_text" if item.get("role") == "assistant" else "input_text"
        content = [{"type": part, "text": content}]
    id = item.get("id") or f"{_PREFIXES.get(kind, 'item')}_{secrets.token_hex(12)}"
    shown = {} if content is None else {"content": content}
    return {**item, "type": kind, "id": id, **shown}


_PREFIXES = {
    "message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs",
    "mcp_call": "mcp", "mcp_list_tools": "mcpl", "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}  # fmt: skip


def _items(chain: list[sqlite3.Row]) -> list[Item]:
    """Return the items of a conversation from its start."""
    return [
        item
        for row in reversed(chain)
        for item in (*_decoded(row["input"]), *msgspec.json.decode(row["response"])["output"])
    ]


def _decoded(text: bytes) -> list[Item]:
    return msgspec.json.decode(text, type=list[Item])
