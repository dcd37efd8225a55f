"""The functions that answer requests, in a table for each kind of model.

A handler takes the model and the request. It returns the result, an iterator over its parts, or
what is `Running` and replies later. Each file has the table of its own functions.
"""

from __future__ import annotations

from types import MappingProxyType

from tampu.engine.backend import Handlers
from tampu.engine.handlers import (
    capture,
    decide,
    decision_model,
    embed,
    generate,
    management,
    score,
    sounds,
    tokens,
)

VOCABULARY: Handlers = MappingProxyType({**tokens.HANDLERS, **management.ANY})
"""Of a model of any engine, also of one that is loaded without its weights."""

TEXT: Handlers = MappingProxyType({**VOCABULARY, **decide.HANDLERS})
"""Of a model of any engine that answers `Score` and `Rank`."""

HANDLERS: Handlers = MappingProxyType(
    {
        **TEXT,
        **generate.HANDLERS,
        **embed.HANDLERS,
        **score.HANDLERS,
        **decision_model.HANDLERS,
        **capture.HANDLERS,
        **sounds.HANDLERS,
        **management.HANDLERS,
    }
)
"""Of tampu's own engine: all kinds."""
