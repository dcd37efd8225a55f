"""Statistics that a replica publishes for routers (Ray Serve's `record_routing_stats`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

_HASH_BYTES = 8


class ReplicaStats(TypedDict):
    """What a replica publishes.

    Attributes:
        number: of this publication; the same as before if nothing has changed.
        prefixes: the hashes of what it holds, each of 8 bytes.
        slots: how many requests it computes at once.
        requests: that it has, running or waiting.
    """

    number: int
    prefixes: bytes
    slots: int
    requests: int


def packed(hashes: Sequence[int]) -> bytes:
    """Return hashes of 64 bits as bytes."""
    return b"".join(each.to_bytes(_HASH_BYTES, "little") for each in hashes)


def unpacked(hashes: bytes) -> list[int]:
    """Return the hashes in bytes."""
    return [
        int.from_bytes(hashes[at : at + _HASH_BYTES], "little")
        for at in range(0, len(hashes), _HASH_BYTES)
    ]
