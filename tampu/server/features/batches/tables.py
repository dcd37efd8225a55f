"""The tables of files and batches."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from tampu.server.front.state import Tables

_STATEMENTS = """
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
"""


def _delete_unknown(connection: sqlite3.Connection, folder: Path) -> None:
    """Delete the files that a killed server was writing."""
    known = {row["id"] for row in connection.execute("SELECT id FROM files")}
    for path in folder.iterdir():
        if path.name not in known:
            path.unlink()


TABLES = (Tables(1, _STATEMENTS, _delete_unknown),)
