"""Thinking on, off and by effort in the families' variables."""

from __future__ import annotations

from typing import Any

import pytest

from tampu.chat.output.reasoning import think_variables
from tampu.errors import RequestError


@pytest.mark.parametrize(
    ("names", "think", "expected"),
    [
        ({"enable_thinking", "messages"}, False, {"enable_thinking": False}),
        ({"enable_thinking"}, True, {"enable_thinking": True}),
        ({"enable_thinking"}, "low", {"enable_thinking": True}),
        ({"thinking"}, True, {"thinking": True}),
        ({"reasoning_effort"}, "high", {"reasoning_effort": "high"}),
        ({"reasoning_effort"}, "max", {"reasoning_effort": "high"}),
        ({"reasoning_effort"}, True, {}),
        ({"reasoning_effort"}, False, {"reasoning_effort": "low"}),
        ({"reasoning_effort", "enable_thinking"}, False, {"enable_thinking": False}),
        ({"thinking_budget"}, False, {"thinking_budget": 0}),
        ({"messages"}, True, {}),
        ({"enable_thinking"}, None, {}),
    ],
)
def test_only_variables_used_by_the_template_are_set(
    names: set[str], think: bool | str | None, expected: dict[str, Any]
) -> None:
    assert think_variables(names, think) == expected


def test_an_unknown_effort_is_refused() -> None:
    with pytest.raises(RequestError, match="low, medium, high, max"):
        think_variables({"thinking"}, "huge")
