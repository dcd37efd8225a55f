"""What a model does and holds now, for those who watch it and route requests to it."""

from __future__ import annotations

from tampu.engine.backend import Handlers
from tampu.engine.management import (
    ListPrefixes,
    Observe,
    Observed,
    Prefixes,
)
from tampu.engine.native import NativeModel


def observe(model: NativeModel, _: Observe) -> Observed:
    """Return what the run loop has done since the last call."""
    return Observed(model.runner.observe())


def list_prefixes(model: NativeModel, _: ListPrefixes) -> Prefixes:
    """Return which prefixes are in the cache."""
    return Prefixes(model.prefixes.listed())


HANDLERS: Handlers = {Observe: observe, ListPrefixes: list_prefixes}
