"""The threads of a worker: a request waits only for others of its lane."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tampu.engine.request import Lane

LANES: Mapping[Lane, int] = MappingProxyType(
    {
        "short": 4,
        "long": 2,
        "media": 2,
        "grammar": 2,
        "embed": 1,
        "score": 4,
        "watch": 1,
        "offline": 1,
    }
)
"""How many requests of each lane are run at the same time; `Request.lane` says which is which."""

PREPARING: frozenset[Lane] = frozenset({"short", "long", "media", "grammar"})
"""Lanes whose requests are short or run elsewhere: one that stays in them for long hangs."""
