"""The two kinds of chat templates, and which of them a text is.

Files hold Jinja; models of Ollama's registry, and Modelfiles, hold Go's template language or Jinja.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tampu.chat.ollama_template import OllamaTemplate
from tampu.chat.output.reasoning import Think
from tampu.chat.segments import Prompt
from tampu.chat.template import ChatTemplate

_JINJA = re.compile(r"\{%|\{#|\{\{-?\s*(?:bos_token|eos_token|messages|tools|raise_exception)\b")


class PromptTemplate(Protocol):
    """What makes a prompt of a conversation; see `template.ChatTemplate`."""

    source: str

    def thinking(self, think: Think) -> dict[str, Any]:
        """Return the variables that tell the template how much the model shall think."""
        ...

    @property
    def supports_tools(self) -> bool:
        """Whether the template shows tools to the model."""
        ...

    @property
    def supports_thinking(self) -> bool:
        """Whether the template knows of thoughts before the answer."""
        ...

    @property
    def continues_answers(self) -> bool:
        """Whether it leaves an answer open that is the last message."""
        ...

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        bos_token: str,
        eos_token: str,
        variables: Mapping[str, Any] | None = None,
    ) -> Prompt:
        """Return the prompt for the conversation."""
        ...


def read_template(text: str) -> PromptTemplate:
    """Return the template that a text is: Jinja if it has its marks, else Go's.

    Raises:
        ModelFileError: when it is neither, with the line.
    """
    return ChatTemplate(text) if _JINJA.search(text) else OllamaTemplate(text)
