"""A model's template that does not compile: only conversations are refused."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NoReturn

from tampu.chat.output.parser_registry import chat_format
from tampu.chat.output.reasoning import Think, check_think
from tampu.chat.template import unusable

_TOOLS = re.compile(r"tools|tool_call|\.Tools\b")


@dataclass(frozen=True, slots=True)
class UnusableTemplate:
    """Has the methods of `template.ChatTemplate`; its capabilities are those of its text.

    Attributes:
        source: its text; empty if it is not a text.
        problem: what is wrong with it, with the line.
    """

    source: str
    problem: str

    @property
    def supports_tools(self) -> bool:
        """Whether it names tools."""
        return _TOOLS.search(self.source) is not None

    @property
    def supports_thinking(self) -> bool:
        """Whether it has tags of reasoning."""
        return chat_format(self.source).reasoning is not None

    @property
    def supports_insert(self) -> bool:
        """Whether it has a place for a suffix: none that can be used."""
        return False

    @property
    def continues_answers(self) -> bool:
        """Whether it leaves the last message open if it is an answer."""
        return False

    def think_variables(self, think: Think) -> dict[str, Any]:
        """Return no variables; raise RequestError for an unknown effort."""
        check_think(think)
        return {}

    def render(self, *_: object, **_more: object) -> NoReturn:
        """Refuse the conversation.

        Raises:
            RequestError: always, with the problem and what to do.
        """
        raise unusable(self.problem)
