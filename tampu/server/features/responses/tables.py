"""The tables of responses and conversations."""

from __future__ import annotations

from tampu.server.front.state import Tables

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
TABLES = (Tables(2, _RESPONSES), Tables(3, _CONVERSATIONS), Tables(4, _RESPONSE_ITEMS))
