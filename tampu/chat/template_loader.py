"""Finds a model's chat template, and whether it is written in Jinja or Go's language.

Files hold Jinja; models of Ollama's registry, and Modelfiles, hold Go's template language or Jinja.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from tampu.chat.template import KEY, ChatTemplate
from tampu.chat.unusable_template import UnusableTemplate
from tampu.errors import ModelFileError
from tampu.text import valid_text

if TYPE_CHECKING:
    from tampu.chat.ollama_template import OllamaTemplate
    from tampu.ml.metadata import Metadata

_JINJA = re.compile(r"\{%|\{#|\{\{-?\s*(?:bos_token|eos_token|messages|tools|raise_exception)\b")

CompiledTemplate: TypeAlias = "ChatTemplate | OllamaTemplate"
PromptTemplate: TypeAlias = "CompiledTemplate | UnusableTemplate"


def model_template(metadata: Metadata, own: str = "") -> PromptTemplate | None:
    """Return the template of a model; None if it has none.

    One that does not compile is an `UnusableTemplate`. Bytes that are not UTF-8 become U+FFFD.

    Args:
        metadata: of the model's file.
        own: the text of the model's own template, in place of the one in the file; empty: none.
    """
    if own:
        return usable(own)
    try:
        source, tool_source = (
            valid_text(metadata.string(key, default="")) for key in (KEY, f"{KEY}.tool_use")
        )
    except ModelFileError as error:
        return UnusableTemplate("", str(error))
    return _of_file(source, tool_source) if source else None


def usable(text: str) -> PromptTemplate:
    """Return the template in a text; an `UnusableTemplate` if it does not compile."""
    try:
        return read_template(text)
    except ModelFileError as error:
        return UnusableTemplate(text, error.reason)


def read_template(text: str) -> CompiledTemplate:
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


@lru_cache(maxsize=8)  # a file's description, its loader and its engine ask for it
def _of_file(source: str, tool_source: str) -> PromptTemplate:
    try:
        return ChatTemplate(source, tool_source)
    except ModelFileError as error:
        return UnusableTemplate(source, error.reason)
