"""Prompts of texts, images and sounds in their order, of which no template says where they go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from tampu.chat.media import MediaFile
from tampu.engine.prompts import MEDIA_MARKER, TextPrompt
from tampu.errors import require
from tampu.server.fields.conversation import check_file, check_media_count
from tampu.server.fields.media import decode_image
from tampu.server.serving.model_defaults import ModelDefaults

Parts: TypeAlias = list[str | MediaFile]


def placed(texts: Sequence[str], data: Sequence[Any], where: str) -> Parts:
    """Return texts with files in base64 between them.

    Raises:
        RequestError: unless there is one file for each place.
    """
    places = len(texts) - 1
    message = f"{where} has {len(data)} images, the text has {MEDIA_MARKER} {places} times"
    require(places == len(data), message)
    require(all(isinstance(each, str) for each in data), f"{where} must be a list of base64 texts")
    check_media_count(len(data))
    parts: Parts = [texts[0]]
    for index, (text, file) in enumerate(zip(texts[1:], data, strict=True)):
        parts += [decode_image(file, f"{where}[{index}]"), text]
    return parts


def media_prompt(parts: Parts, model: str, defaults: ModelDefaults) -> TextPrompt:
    """Return the prompt of texts and files, which the model must take.

    Raises:
        RequestError: for a file that it does not take, and one that is not what it should be.
    """
    for part in parts:
        if isinstance(part, MediaFile):
            check_file(part, model, defaults)
    return TextPrompt.of_parts(parts)
