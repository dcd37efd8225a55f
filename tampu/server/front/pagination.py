"""Lists in OpenAI's form: which part of a list a request wants, and metadata of what is listed."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tampu.errors import NotFoundError, require
from tampu.server.front.caller import Caller

_MAX_FIELDS, _MAX_NAME, _MAX_VALUE = 16, 64, 512
_MAX_LIMIT = 10_000
_MAX_DIGITS = 10


class Page(msgspec.Struct, frozen=True):
    """Which part of a list is wanted: at most `limit` after the one with the id `after`."""

    limit: int
    after: str | None = None
    is_ascending: bool = False

    def select(
        self,
        db: sqlite3.Connection,
        table: str,
        caller: Caller,
        where: str,
        values: Sequence[object],
    ) -> tuple[list[sqlite3.Row], bool]:
        """Return rows of a table that the caller may see, and whether there are more.

        Raises:
            NoSuchFileError: if there is nothing with the id `after`.
        """
        if not caller.may_manage:
            where, values = f"{where} AND owner = ?", [*values, caller.name]
        if self.after is not None:
            row = db.execute(
                f"SELECT number FROM {table} WHERE id = ?",
                (self.after,),
            ).fetchone()
            if row is None:
                raise NotFoundError(f"after: {self.after[:100]!r} not found")
            where = f"{where} AND number {'>' if self.is_ascending else '<'} ?"
            values = [*values, row["number"]]
        order = "ASC" if self.is_ascending else "DESC"
        rows = db.execute(
            f"SELECT * FROM {table} WHERE {where} ORDER BY number {order} LIMIT ?",
            (*values, self.limit + 1),
        ).fetchall()
        return rows[: self.limit], len(rows) > self.limit


def check_page(query: Mapping[str, str], limit: int, *, most: int = _MAX_LIMIT) -> Page:
    """Return which part of a list a request wants; `limit` is the default.

    Raises:
        RequestError: naming the parameter that is wrong.
    """
    text = query.get("limit", str(limit))
    is_number = text.isascii() and text.isdigit() and len(text) < _MAX_DIGITS
    require(is_number and 1 <= int(text) <= most, f"limit must be 1 to {most}, not {text[:50]!r}")
    order = query.get("order", "desc")
    require(order in ("asc", "desc"), f"order must be asc or desc, not {order[:50]!r}")
    return Page(int(text), query.get("after"), order == "asc")


def listed(items: list[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """Return a page of a list."""
    ids = [item["id"] for item in items]
    return {
        "object": "list",
        "data": items,
        "first_id": ids[0] if ids else None,
        "last_id": ids[-1] if ids else None,
        "has_more": has_more,
    }


def check_metadata(given: dict[str, str] | None) -> dict[str, str]:
    """Return metadata.

    Raises:
        RequestError: if it is too large.
    """
    metadata = given or {}
    require(
        len(metadata) <= _MAX_FIELDS
        and all(len(n) <= _MAX_NAME and len(v) <= _MAX_VALUE for n, v in metadata.items()),
        f"metadata may have {_MAX_FIELDS} names of {_MAX_NAME} characters, with texts of "
        f"{_MAX_VALUE}",
    )
    return metadata
