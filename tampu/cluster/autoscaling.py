"""Chooses the number of replicas of a model: as many as have slots for its requests."""

from __future__ import annotations

from statistics import mean
from typing import Any

from ray.serve.config import AutoscalingContext

SLOTS = "slots"
"""The name under which replicas tell Ray how many requests they compute at once."""


def replicas_by_slots(context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
    """Return how many replicas are wanted; Ray's controller asks.

    A model decides how many of the wanted slots it gets (one with recurrent layers fewer), so that
    only its replicas know. Until one has told, and if all began before Ray was to add some, those
    that are wanted count.
    """
    told = (context.aggregated_metrics or {}).get(SLOTS, {})
    slots = mean(told.values() or [context.config.get_target_ongoing_requests()])
    return context.total_num_requests / slots, {}
