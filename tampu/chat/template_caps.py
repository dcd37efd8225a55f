"""Detects what a chat template supports, by rendering short conversations with it.

The names are those of llama.cpp's `caps` (`chat_template_caps` of llama-server's `/props`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tampu.chat.segments import Prompt, text_of
from tampu.errors import RequestError

_SYSTEM, _USER, _REASONING = "s-y-s", "u-s-e-r", "r-e-a-s"
_TOOL, _FIRST, _SECOND = "t_o_o_l", "c_a_l_l_1", "c_a_l_l_2"
_QUESTION = {"role": "user", "content": _USER}
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": _TOOL,
            "description": "d",
            "parameters": {"type": "object", "properties": {"x": {"type": "string"}}},
        },
    }
]


class Template(Protocol):
    """The part of a template that this needs."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        bos_token: str,
        eos_token: str,
    ) -> Prompt:
        """Return the prompt of a conversation, as `ChatTemplate.render`."""
        ...


def template_caps(template: Template | None) -> dict[str, bool]:
    """Return which of llama.cpp's capabilities a template has; None has none.

    The content of a message is shown where it is a text (`supports_string_content`) or a list of
    parts (`supports_typed_content`); so are tools, calls of them, a second call beside one, system
    messages, and the reasoning of earlier answers. A template that shows no text is asked nothing
    more: it may have taken all the time that it is given.
    """

    def shows(text: str, *messages: Mapping[str, Any], tools: Any = None) -> bool:
        shown = _rendered(template, messages, tools)
        return text in shown and "'type'" not in shown

    has_texts = template is not None and shows(_USER, _QUESTION)
    answer = {"role": "assistant", "content": "a"}

    def shows_calls(*names: str) -> bool:
        calls = {"role": "assistant", "content": "", "tool_calls": [*map(_call, names)]}
        results = [_result(name) for name in names]
        return shows(names[-1], _QUESTION, calls, *results, answer, _QUESTION, tools=_TOOLS)

    parts = {"role": "user", "content": [{"type": "text", "text": _USER}]}
    return {
        "supports_string_content": has_texts,
        "supports_typed_content": has_texts and shows(_USER, parts),
        "supports_tools": has_texts and shows(_TOOL, _QUESTION, tools=_TOOLS),
        "supports_tool_calls": has_texts and shows_calls(_FIRST),
        "supports_parallel_tool_calls": has_texts and shows_calls(_FIRST, _SECOND),
        "supports_system_role": has_texts
        and shows(_SYSTEM, {"role": "system", "content": _SYSTEM}, _QUESTION),
        "supports_preserve_reasoning": has_texts
        and shows(_REASONING, _QUESTION, answer | {"reasoning_content": _REASONING}, _QUESTION),
    }


def _call(name: str) -> dict[str, Any]:
    function = {"name": name, "arguments": {"x": "y"}}
    return {"id": name, "type": "function", "function": function}


def _result(name: str) -> dict[str, Any]:
    return {"role": "tool", "content": "r", "tool_call_id": name, "name": name}


def _rendered(template: Template | None, messages: Sequence[Mapping[str, Any]], tools: Any) -> str:
    """Return a conversation as the template writes it; "" if it refuses it or fails."""
    if template is None:
        return ""
    try:
        return text_of(template.render(messages, tools=tools, bos_token="", eos_token=""))
    except RequestError:
        return ""
