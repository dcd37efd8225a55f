"""What a model does and holds now, for those who watch it and route requests to it."""

from __future__ import annotations

from tampu.engine.native import NativeModel
from tampu.engine.requests import ListPrefixes, Observe, Observed, Prefixes


def observe(model: NativeModel, _: Observe) -> Observed:
    """Return what the run loop has done since the last call."""
    return Observed(model.runner.observe())


def list_prefixes(model: NativeModel, _: ListPrefixes) -> Prefixes:
    """Return which prefixes are in the cache."""
    return Prefixes(model.prefixes.listed())
