"""Reasoning on, off and by effort, in the variables and fields of the families' templates."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

from tampu.errors import RequestError

Think: TypeAlias = bool | str | None
"""None: the model's default; a text: how much, one of `EFFORTS`."""

EFFORTS = ("low", "medium", "high", "max")
_SWITCHES = ("enable_thinking", "thinking", "think", "reasoning", "enable_reasoning")
_LEAST = "low"  # where reasoning cannot be turned off
_FIELDS = ("reasoning_content", "thinking", "reasoning")


def check_think(think: Think) -> None:
    """Raise RequestError for an unknown effort."""
    if isinstance(think, str) and think not in EFFORTS:
        raise RequestError(f"think is {think!r}; it must be true, false, {', '.join(EFFORTS)}")


def think_variables(names: Collection[str], think: Think) -> dict[str, Any]:
    """Return the variables that set a Jinja template's reasoning.

    Args:
        names: of the variables that the template asks for.
        think: what the request asks for.

    Raises:
        RequestError: for an unknown effort.
    """
    check_think(think)
    if think is None:
        return {}
    values: dict[str, Any] = {name: bool(think) for name in _SWITCHES if name in names}
    if "reasoning_effort" in names:
        if isinstance(think, str):
            values["reasoning_effort"] = "high" if think == "max" else think
        elif not think and not values:
            values["reasoning_effort"] = _LEAST
    if "thinking_budget" in names and think is False:
        values["thinking_budget"] = 0
    return values


def with_reasoning(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message whose reasoning, if it has any, has the names that templates use.

    Most look for `reasoning_content`, gpt-oss's for `thinking`; the aliases are transformers'.
    """
    reasoning = next((message[name] for name in _FIELDS if message.get(name) is not None), None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}
