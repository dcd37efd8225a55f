"""Stored conversations of OpenAI's API: lists of items, which responses continue.

Those that were not used for longest go first when there are more bytes than may be kept.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec

from tampu.errors import NotFoundError, RequestError
from tampu.server.features.responses.store import Item, with_ids
from tampu.server.front.caller import Caller
from tampu.server.front.state import State


class NoSuchConversationError(NotFoundError):
    """There is no such conversation or item, or the caller may not see it."""


class ConversationStore:
    """The conversations that are kept."""

    def __init__(
        self, state: State, max_bytes: int, clock: Callable[[], float] = time.time
    ) -> None:
        """Keep at most so many bytes in this state; 0: nothing. `clock` returns seconds."""
        self._state, self._max_bytes, self._clock = state, max_bytes, clock

    async def create(
        self, caller: Caller, items: Sequence[Item], metadata: dict[str, str]
    ) -> dict[str, Any]:
        """Add a conversation with its first items; return it.

        Raises:
            RequestError: if none are kept, or the items are too large.
        """
        self._require_some()
        id, now = f"conv_{secrets.token_hex(16)}", int(self._clock())

        def work(db: sqlite3.Connection) -> dict[str, Any]:
            text = json.dumps(metadata)
            db.execute(
                "INSERT INTO conversations (id, owner, metadata, created_at, used_at, bytes) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (id, caller.name, text, now, now, len(text)),
            )
            self._append(db, self._seen(db, caller, id), _shown(items))
            return _described(self._seen(db, caller, id))

        return await self._state.run(work)

    async def get(self, caller: Caller, id: str) -> dict[str, Any]:
        """Return a conversation without its items.

        Raises:
            NoSuchConversationError: if there is none.
        """
        return await self._state.run(lambda db: _described(self._seen(db, caller, id)))

    async def update(self, caller: Caller, id: str, metadata: dict[str, str]) -> dict[str, Any]:
        """Replace the metadata of a conversation; return it.

        Raises:
            NoSuchConversationError: if there is none.
        """

        def work(db: sqlite3.Connection) -> dict[str, Any]:
            row, text = self._seen(db, caller, id), json.dumps(metadata)
            db.execute(
                "UPDATE conversations SET metadata = ?, bytes = bytes + ? WHERE number = ?",
                (text, len(text) - len(row["metadata"]), row["number"]),
            )
            return _described(self._seen(db, caller, id))

        return await self._state.run(work)

    async def delete(self, caller: Caller, id: str) -> None:
        """Delete a conversation with its items.

        Raises:
            NoSuchConversationError: if there is none.
        """
        await self._state.run(lambda db: _delete(db, self._seen(db, caller, id)["number"]))

    async def items(self, caller: Caller, id: str) -> list[Item]:
        """Return all items of a conversation, the first one first; it counts as used.

        Raises:
            NoSuchConversationError: if there is none.
            RequestError: if none are kept.
        """
        self._require_some()
        now = int(self._clock())

        def work(db: sqlite3.Connection) -> list[Item]:
            number = self._seen(db, caller, id)["number"]
            db.execute("UPDATE conversations SET used_at = ? WHERE number = ?", (now, number))
            query = "SELECT item FROM items WHERE conversation = ? ORDER BY number"
            return [msgspec.json.decode(row["item"]) for row in db.execute(query, (number,))]

        return await self._state.run(work)

    async def item(self, caller: Caller, id: str, item_id: str) -> Item:
        """Return an item of a conversation.

        Raises:
            NoSuchConversationError: if there is none.
        """

        def work(db: sqlite3.Connection) -> Item:
            row = _item_row(db, self._seen(db, caller, id), item_id)
            found: Item = msgspec.json.decode(row["item"])
            return found

        return await self._state.run(work)

    async def find_items(self, caller: Caller, ids: Collection[str]) -> dict[str, Item]:
        """Return the items with these ids that conversations have, by id; leave out the others."""
        query = (
            "SELECT item, owner FROM items JOIN conversations AS c ON c.number = conversation "
            "WHERE items.id = ?"
        )

        def work(db: sqlite3.Connection) -> dict[str, Item]:
            return {
                id: msgspec.json.decode(row["item"])
                for id in ids
                for row in db.execute(query, (id,))
                if caller.may_see(row["owner"])
            }

        return await self._state.run(work)

    async def append(self, caller: Caller, id: str, items: Sequence[Item]) -> list[Item]:
        """Add items to a conversation, in one transaction; return them with their ids.

        Raises:
            NoSuchConversationError: if there is none.
            RequestError: if one of the ids is there already, or the items are too large.
        """

        def work(db: sqlite3.Connection) -> list[Item]:
            shown = _shown(items)
            self._append(db, self._seen(db, caller, id), shown)
            return shown

        return await self._state.run(work)

    async def delete_item(self, caller: Caller, id: str, item_id: str) -> dict[str, Any]:
        """Delete an item; return its conversation.

        Raises:
            NoSuchConversationError: if there is none.
        """

        def work(db: sqlite3.Connection) -> dict[str, Any]:
            conversation = self._seen(db, caller, id)
            row = _item_row(db, conversation, item_id)
            db.execute("DELETE FROM items WHERE number = ?", (row["number"],))
            db.execute(
                "UPDATE conversations SET bytes = bytes - ? WHERE number = ?",
                (len(row["item"]), conversation["number"]),
            )
            return _described(conversation)

        return await self._state.run(work)

    def _require_some(self) -> None:
        if not self._max_bytes:
            raise RequestError(
                "conversation is not supported: this server keeps none (MAX_RESPONSES_SIZE)"
            )

    def _append(self, db: sqlite3.Connection, row: sqlite3.Row, items: Sequence[Item]) -> None:
        number, now = row["number"], int(self._clock())
        texts = [msgspec.json.encode(item) for item in items]
        for item, text in zip(items, texts, strict=True):
            try:
                db.execute(
                    "INSERT INTO items (conversation, id, item) VALUES (?, ?, ?)",
                    (number, item["id"], text),
                )
            except sqlite3.IntegrityError:
                raise RequestError(f"items: {item['id'][:100]!r} is there already") from None
        db.execute(
            "UPDATE conversations SET used_at = ?, bytes = bytes + ? WHERE number = ?",
            (now, sum(map(len, texts)), number),
        )
        total = db.execute("SELECT TOTAL(bytes) FROM conversations").fetchone()[0]
        while total > self._max_bytes:
            oldest = db.execute(
                "SELECT number, bytes FROM conversations WHERE number != ? "
                "ORDER BY used_at, number LIMIT 1",
                (number,),
            ).fetchone()
            if oldest is None:
                raise RequestError(
                    f"items: a conversation may have {self._max_bytes} bytes (MAX_RESPONSES_SIZE)"
                )
            _delete(db, oldest["number"])
            total -= oldest["bytes"]

    def _seen(self, db: sqlite3.Connection, caller: Caller, id: str) -> sqlite3.Row:
        query = "SELECT * FROM conversations WHERE id = ?"
        row: sqlite3.Row | None = db.execute(query, (id,)).fetchone()
        if row is None or not caller.may_see(row["owner"]):
            raise NoSuchConversationError(f"conversation {id[:100]!r} not found")
        return row


def _delete(db: sqlite3.Connection, number: int) -> None:
    db.execute("DELETE FROM items WHERE conversation = ?", (number,))
    db.execute("DELETE FROM conversations WHERE number = ?", (number,))


def _item_row(db: sqlite3.Connection, conversation: sqlite3.Row, item_id: str) -> sqlite3.Row:
    query = "SELECT * FROM items WHERE conversation = ? AND id = ?"
    row: sqlite3.Row | None = db.execute(query, (conversation["number"], item_id)).fetchone()
    if row is None:
        raise NoSuchConversationError(
            f"item {item_id[:100]!r} not found in conversation {conversation['id']!r}"
        )
    return row


def _shown(items: Sequence[Item]) -> list[Item]:
    """Return items with ids, and messages with their status, as they are listed."""
    return [
        {"status": "completed", **item} if item["type"] == "message" else item
        for item in with_ids([*items])
    ]


def _described(row: sqlite3.Row) -> dict[str, Any]:
    return {
        "id": row["id"],
        "object": "conversation",
        "created_at": row["created_at"],
        "metadata": json.loads(row["metadata"]),
    }
