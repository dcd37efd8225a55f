"""Prompts with images and sounds without a template: texts and files in their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tampu.chat.messages import read_role
from tampu.engine.prompts import MEDIA_MARKER
from tampu.errors import require
from tampu.server.fields.media_parts import Parts, placed
from tampu.server.fields.mixed_prompts import PROMPT_IMAGES, PROMPT_TEXT, each_prompt, has_files
from tampu.server.openai.fields import Message, read_parts


def read_media(given: Any, field: str) -> list[Parts | None]:
    """Return the texts and files of each prompt that has files; None for each of the others.

    Args:
        given: the prompts, as `read_prompts` takes them.
        field: their name.

    Raises:
        RequestError: for a part that is not known, and for other than one place for each file.
    """
    return [_read(prompt, where) for prompt, where in each_prompt(given, field)]


def _read(prompt: Any, where: str) -> Parts | None:
    if not has_files(prompt):
        return None
    if not prompt.get(PROMPT_IMAGES):
        return [*read_parts(prompt["content"], f"{where}.content")]
    place, data = f"{where}.{PROMPT_IMAGES}", prompt[PROMPT_IMAGES]
    require(isinstance(data, list), f"{place} must be a list of base64 texts")
    text = prompt.get(PROMPT_TEXT)
    require(isinstance(text, str), f"{place} needs {PROMPT_TEXT} beside it")
    return placed(text.split(MEDIA_MARKER), data, place)


def joined_messages(messages: Sequence[Message]) -> Parts:
    """Return the contents of messages, one after the other, without a template.

    Raises:
        RequestError: if there is none, or one has no content.
    """
    require(messages, "messages is empty: at least one message is required")
    parts: Parts = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        read_role(message.role, where)
        if isinstance(message.content, str):
            parts.append(message.content)
            continue
        require(message.content is not None, f"{where}.content is missing")
        parts += read_parts(message.content or (), f"{where}.content")
    return parts
