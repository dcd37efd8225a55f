"""The functions that answer requests, one for each kind, in tables.

A handler takes the model and the request. It returns the result, an iterator over its parts, or
what is `Running` and replies later.
"""

from __future__ import annotations

from types import MappingProxyType

from tampu.engine.backend import Handlers
from tampu.engine.handlers.adapters import change_adapter
from tampu.engine.handlers.embed import embed
from tampu.engine.handlers.estimate import estimate
from tampu.engine.handlers.generate import generate
from tampu.engine.handlers.observe import list_prefixes, observe
from tampu.engine.handlers.score import decide, rank, rerank, score
from tampu.engine.handlers.snapshots import act_on_slot
from tampu.engine.handlers.tokens import check_format, decode, encode
from tampu.engine.requests import (
    ActOnSlot,
    ChangeAdapter,
    CheckFormat,
    Decide,
    Decode,
    Embed,
    Encode,
    EstimateMemory,
    Generate,
    ListPrefixes,
    Observe,
    Rank,
    Rerank,
    Score,
)

VOCABULARY: Handlers = MappingProxyType(
    {Encode: encode, Decode: decode, CheckFormat: check_format, EstimateMemory: estimate}
)
"""Of a model of any engine, also of one that is loaded without its weights."""

TEXT: Handlers = MappingProxyType({**VOCABULARY, Decide: decide, Rerank: rerank})
"""Of a model of any engine that answers `Score` and `Rank`."""

HANDLERS: Handlers = MappingProxyType(
    {
        **TEXT,
        Generate: generate,
        Embed: embed,
        Score: score,
        Rank: rank,
        Observe: observe,
        ListPrefixes: list_prefixes,
        ActOnSlot: act_on_slot,
        ChangeAdapter: change_adapter,
    }
)
"""Of tampu's own engine: all kinds."""
