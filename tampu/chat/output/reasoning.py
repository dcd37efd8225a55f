"""Thinking on, off and by effort, in the variables that the templates of the families ask for."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeAlias

from tampu.errors import RequestError

Think: TypeAlias = bool | str | None
"""None: as the model does by itself; a text: how much, one of `EFFORTS`."""

EFFORTS = ("low", "medium", "high", "max")
_SWITCHES = ("enable_thinking", "thinking", "think", "reasoning", "enable_reasoning")
_LEAST = "low"  # where thinking cannot be turned off


def thinking_variables(names: Collection[str], think: Think) -> dict[str, Any]:
    """Return the variables that say to a template how much the model shall think.

    Args:
        names: of the variables that the template asks for.
        think: what is wanted.

    Raises:
        RequestError: for an effort that there is not.
    """
    if think is None:
        return {}
    if isinstance(think, str) and think not in EFFORTS:
        raise RequestError(f"think is {think!r}; it must be true, false, {', '.join(EFFORTS)}")
    values: dict[str, Any] = {name: bool(think) for name in _SWITCHES if name in names}
    if "reasoning_effort" in names:
        if isinstance(think, str):
            values["reasoning_effort"] = "high" if think == "max" else think
        elif not think and not values:
            values["reasoning_effort"] = _LEAST
    if "thinking_budget" in names and think is False:
        values["thinking_budget"] = 0
    return values
