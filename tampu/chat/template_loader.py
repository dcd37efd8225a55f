"""The two kinds of chat templates, and which of them a text is.

Files hold Jinja; models of Ollama's registry, and Modelfiles, hold Go's template language or Jinja.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias

from tampu.chat.template import ChatTemplate

if TYPE_CHECKING:
    from tampu.chat.ollama_template import OllamaTemplate

_JINJA = re.compile(r"\{%|\{#|\{\{-?\s*(?:bos_token|eos_token|messages|tools|raise_exception)\b")

PromptTemplate: TypeAlias = "ChatTemplate | OllamaTemplate"


def read_template(text: str) -> PromptTemplate:
    """Return the template in a text: Jinja if it looks like it, else Go's.

    Raises:
        ModelFileError: when it is neither, with the line.
    """
    return ChatTemplate(text) if _JINJA.search(text) else go_template(text)


def go_template(text: str) -> OllamaTemplate:
    """Return a template in Go's language.

    Raises:
        ModelFileError: when it is not valid, with the line.
    """
    from tampu.chat.ollama_template import OllamaTemplate  # slow to import; few models have one

    return OllamaTemplate(text)
