"""Blocks: the rows of some consecutive tokens as bytes, in files and snapshots.

    head (magic, format, bytes of the description, their CRC-32)  description (msgpack)  rows

A block names all that its rows follow from: the model and how it computes (`CacheKey`), and by the
digest of the block before it all earlier tokens. Its rows have a checksum, which is compared before
they are used. Images and sounds count by the digests of their contents.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import IO

import msgspec
import numpy as np
import numpy.typing as npt

from tampu.errors import SnapshotError
from tampu.ml.rows import Bytes

FORMAT = 2
DIGEST_BYTES = 16
_MAGIC = b"TAMPUROW"
_HEAD = struct.Struct("<8sIII")  # magic, format, bytes of the description, CRC-32 of it
_MAX_DESCRIPTION = 2**24
_MEDIUM = struct.Struct("<II32s")  # its first token in the block, how many, the content's digest

Keys = npt.NDArray[np.int32]
Present = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class CacheKey:
    """All that the rows of given tokens follow from.

    Attributes:
        facts: such as the digest of the weights and the types of the cache.
    """

    facts: Mapping[str, object]

    @property
    def digest(self) -> bytes:
        """The digest of all facts and of the format: what the first block of a sequence follows."""
        text = json.dumps({**self.facts, "format": FORMAT}, sort_keys=True)
        return hashlib.sha256(text.encode()).digest()[:DIGEST_BYTES]

    def differences(self, other: Mapping[str, object]) -> list[str]:
        """Return the names of the facts that differ from others."""
        ours = json.loads(json.dumps(self.facts))
        return sorted(name for name in {*ours, *other} if ours.get(name) != other.get(name))


@dataclass(frozen=True, slots=True)
class PrefixTokens:
    """The beginning of a sequence as other processes know it, too.

    Attributes:
        keys: I32, (n,): tokens; -1 minus its number for the inputs of an image or a sound.
        media: the digest of each content, by its number.
        offset: what the keys have more than those of the plain model.
        variant: how the request changes the model; empty: not at all.
    """

    keys: Keys
    media: Mapping[int, bytes]
    offset: int = 0
    variant: bytes = b""

    def __len__(self) -> int:
        return len(self.keys)

    def root(self, digest: bytes) -> bytes:
        """Return what the first block follows, from the digest of the `CacheKey`."""
        return _digest(digest, self.variant) if self.variant else digest

    def plain(self, start: int, end: int) -> Keys:
        """Return the keys of [start, end) as those of the plain model."""
        return without_offset(self.keys[start:end], self.offset)

    def identity(self, start: int, end: int) -> bytes:
        """Return the tokens of [start, end), with the digests of media, as bytes."""
        keys = self.plain(start, end)
        parts = [np.maximum(keys, -1).astype("<i4").tobytes()]
        if not (keys < 0).any():
            return parts[0]
        edges = [0, *(np.flatnonzero(np.diff(keys)) + 1).tolist(), len(keys)]
        for first, last in pairwise(edges):
            if keys[first] < 0:
                content = self.media[-1 - int(keys[first])]
                parts.append(_MEDIUM.pack(first, last - first, content))
        return b"".join(parts)

    def digest(self, parent: bytes, start: int, end: int) -> bytes:
        """Return the digest of the block [start, end) after the block with the digest `parent`."""
        return _digest(parent, self.identity(start, end))


def without_offset(keys: Keys, offset: int) -> Keys:
    """Return the keys of a sequence that changes the model as those of the plain model."""
    return np.where(keys < 0, keys + offset, keys - offset).astype(np.int32) if offset else keys


def _digest(parent: bytes, identity: bytes) -> bytes:
    return hashlib.sha256(parent + identity).digest()[:DIGEST_BYTES]


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """What a block has.

    Attributes:
        parent: the digest of the block before it; of the first block `PrefixTokens.root`.
        identity: `PrefixTokens.identity` of its tokens.
        tokens: how many these are.
        present: for each group, a bit for each token: whether its rows are there.
        size: bytes of the rows.
        checksum: of the rows, by `_checksum`.
    """

    parent: bytes
    identity: bytes
    tokens: int
    present: tuple[bytes, ...]
    size: int
    checksum: bytes

    @property
    def digest(self) -> bytes:
        """The digest of the block, which the block after it has as its parent."""
        return _digest(self.parent, self.identity)

    def mask(self) -> Present:
        """Return which tokens have rows, (groups, tokens)."""
        bits = [np.frombuffer(each, np.uint8) for each in self.present]
        rows = [np.unpackbits(each, count=self.tokens).astype(np.bool_) for each in bits]
        return np.stack(rows) if rows else np.empty((0, self.tokens), np.bool_)

    def media(self) -> list[tuple[int, int, bytes]]:
        """Return the media: first token in the block, how many tokens, the content's digest.

        Raises:
            SnapshotError: if they are not in the block.
        """
        runs = self.identity[4 * self.tokens :]
        found = [] if len(runs) % _MEDIUM.size else [*_MEDIUM.iter_unpack(runs)]
        if len(found) * _MEDIUM.size != len(runs) or any(
            first + count > self.tokens for first, count, _ in found
        ):
            raise SnapshotError("the images and sounds of a block are damaged")
        return found

    def common_tokens(self, tokens: PrefixTokens, start: int) -> int:
        """Return how many of the block's first tokens are those from the position `start` on."""
        keys = tokens.plain(start, start + self.tokens)
        own = np.frombuffer(self.identity, "<i4", len(keys))
        is_other = own != np.maximum(keys, -1)
        for first, count, content in self.media():
            there = keys[first : first + count]
            numbers = [-1 - int(key) for key in np.unique(there[there < 0])]
            others = [-1 - number for number in numbers if tokens.media[number] != content]
            is_other[first : first + count] |= np.isin(there, others)
        return int(is_other.argmax()) if is_other.any() else len(keys)


def block_parts(
    parent: bytes, identity: bytes, present: Present, rows: Sequence[Bytes]
) -> list[bytes | memoryview]:
    """Return the bytes of a block, in parts.

    Args:
        parent: as in `Description`.
        identity: as in `Description`.
        present: (groups, tokens): which rows are there.
        rows: those of each group, by `CacheRows.read`.
    """
    description = msgspec.msgpack.encode(
        Description(
            parent=parent,
            identity=identity,
            tokens=present.shape[1],
            present=tuple(np.packbits(each).tobytes() for each in present),
            size=sum(part.nbytes for part in rows),
            checksum=_checksum(part.data for part in rows),
        )
    )
    head = _HEAD.pack(_MAGIC, FORMAT, len(description), zlib.crc32(description))
    return [head + description, *(part.data for part in rows)]


def read_description(file: IO[bytes]) -> Description:
    """Read the description of the block that begins here.

    Raises:
        SnapshotError: if there is none, or it was changed.
        OSError: if the file cannot be read.
    """
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        raise SnapshotError("it ends in the head of a block")
    magic, version, length, checksum = _HEAD.unpack(head)
    if magic != _MAGIC or length > _MAX_DESCRIPTION:
        raise SnapshotError("it has no block of rows where one should begin")
    if version != FORMAT:
        raise SnapshotError(f"it has format {version}, not {FORMAT}")
    encoded = file.read(length)
    if len(encoded) < length or zlib.crc32(encoded) != checksum:
        raise SnapshotError("the description of a block is damaged")
    try:
        found = msgspec.msgpack.decode(encoded, type=Description)
    except msgspec.MsgspecError as error:
        raise SnapshotError(f"the description of a block is invalid: {error}") from None
    if (
        len(found.identity) < 4 * found.tokens
        or found.tokens < 1
        or any(len(each) != -(-found.tokens // 8) for each in found.present)
    ):
        raise SnapshotError("the description of a block is invalid")
    found.media()
    return found


def read_rows_of(file: IO[bytes], description: Description) -> Bytes:
    """Read the rows after a description.

    Raises:
        SnapshotError: if they are incomplete or were changed.
        OSError: if the file cannot be read.
    """
    data = file.read(description.size)
    if len(data) != description.size or _checksum([data]) != description.checksum:
        raise SnapshotError("the rows of a block are damaged")
    return np.frombuffer(data, np.uint8)


def read_rows_into(file: IO[bytes], description: Description, memory: Sequence[memoryview]) -> None:
    """Read the rows after a description into memory of the same size, which is zero on an error.

    Raises:
        SnapshotError: if they are incomplete or were changed.
        OSError: if the file cannot be read.
    """
    checksum, is_right = _Checksum(), False
    try:
        for part in memory:
            # A checksum takes less time while the part is still in the CPU's cache.
            if file.readinto(part) != len(part):  # type: ignore[attr-defined]  # files have it
                break
            checksum.add(part)
        else:
            is_right = checksum.value() == description.checksum
    finally:
        if not is_right:  # what is hidden by a mask must be finite, too
            for part in memory:
                part[:] = bytes(len(part))
    if not is_right:
        raise SnapshotError("the rows of a block are damaged")


class _Checksum:
    """A checksum of some bytes: their GMAC under a known key.

    Processors have instructions for it: it takes a fifth of the time of zlib's CRC-32, which took
    more than reading the file.
    """

    def __init__(self) -> None:
        # Imported where rows are kept: it would delay every start.
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        self._gmac = Cipher(algorithms.AES(bytes(16)), modes.GCM(bytes(12))).encryptor()

    def add(self, part: bytes | memoryview) -> None:
        """Count these bytes, too."""
        self._gmac.authenticate_additional_data(part)

    def value(self) -> bytes:
        """Return the checksum; nothing is added after it."""
        self._gmac.finalize()
        return self._gmac.tag


def _checksum(parts: Iterable[bytes | memoryview]) -> bytes:
    checksum = _Checksum()
    for part in parts:
        checksum.add(part)
    return checksum.value()
