"""Snapshots: the rows of the beginning of one sequence in one file, for the same model.

    head (magic, format, bytes of the facts, their CRC-32)  facts (JSON)  blocks

The facts are those of the `CacheKey`, so that it can be said what differs. The blocks follow one
another without gaps (see `block_file.py`).
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from io import BufferedReader
from typing import NamedTuple

import numpy as np

from tampu.errors import SnapshotError
from tampu.kvcache.block_file import (
    FORMAT,
    CacheKey,
    Description,
    PrefixTokens,
    read_description,
    read_rows_of,
)
from tampu.ml.rows import Bytes

_MAGIC = b"TAMPUSNP"
_HEAD = struct.Struct("<8sIII")
_MAX_FACTS = 2**20


class SnapshotBlock(NamedTuple):
    """A block of a snapshot: the position of its first token, what it has, and its rows."""

    start: int
    description: Description
    rows: Bytes


def head_of(key: CacheKey) -> bytes:
    """Return what a snapshot of a model begins with; blocks follow."""
    facts = json.dumps(key.facts, sort_keys=True).encode()
    return _HEAD.pack(_MAGIC, FORMAT, len(facts), zlib.crc32(facts)) + facts


def check_head(file: BufferedReader, key: CacheKey) -> None:
    """Check that a snapshot is one of a model as it is loaded.

    Raises:
        SnapshotError: if it is damaged, not a snapshot, or of another model; it says what differs.
        OSError: if it cannot be read.
    """
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size or not head.startswith(_MAGIC):
        raise SnapshotError("the file is not a snapshot")
    _, version, length, checksum = _HEAD.unpack(head)
    if version != FORMAT:
        raise SnapshotError(f"the snapshot has format {version}, not {FORMAT}")
    facts = file.read(length) if length <= _MAX_FACTS else b""
    if len(facts) != length or zlib.crc32(facts) != checksum:
        raise SnapshotError("the snapshot is damaged")
    others = key.differences(json.loads(facts))
    if others:
        raise SnapshotError(
            f"the snapshot is of another model or of other options; different: {', '.join(others)}"
        )


def read_blocks(file: BufferedReader, key: CacheKey) -> Iterator[SnapshotBlock]:
    """Yield the blocks of a snapshot after its head, checked.

    Raises:
        SnapshotError: if it is damaged.
        OSError: if it cannot be read.
    """
    parent, start = key.digest, 0
    while file.peek(1):
        description = read_description(file)
        if description.parent != parent:
            raise SnapshotError("the snapshot lacks a block")
        yield SnapshotBlock(start, description, read_rows_of(file, description))
        parent = description.digest
        start += description.tokens


def tokens_of(blocks: list[Description], number_of: dict[bytes, int]) -> PrefixTokens:
    """Return the tokens of blocks, with the numbers that media have here, by their digests."""
    parts = []
    for block in blocks:
        keys = np.frombuffer(block.identity, "<i4", block.tokens).astype(np.int32)
        for first, count, digest in block.media():
            keys[first : first + count] = -1 - number_of[digest]
        parts.append(keys)
    keys = np.concatenate(parts) if parts else np.empty(0, np.int32)
    return PrefixTokens(keys, {number: digest for digest, number in number_of.items()})
