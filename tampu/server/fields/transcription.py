"""What a model that hears is asked for a transcript: in a chat, the sound, then what to do."""

from __future__ import annotations

import re
from typing import Any

from tampu.errors import require
from tampu.server.fields.conversation import Conversation, check_can, with_conversation
from tampu.server.fields.options import ModelBody, parse_limited
from tampu.server.serving.generation_request import GenerationRequest
from tampu.server.serving.model_defaults import ModelDefaults

_LANGUAGE = re.compile(r"[A-Za-z][A-Za-z -]{1,40}")
_TRANSCRIBE = "Transcribe the speech exactly as it is spoken. Answer with the transcript alone."
_TRANSLATE = "Translate the speech into English. Answer with the translation alone."


def instruction(language: str, prompt: str, *, translates: bool = False) -> str:
    """Return the instruction for a model that transcribes or translates.

    Args:
        language: of the speech: a code or a name; empty: it is not known.
        prompt: words and style that are likely; empty: none.
        translates: into English, else the language that is spoken is kept.

    Raises:
        RequestError: for a language that is neither.
    """
    parts = [_TRANSLATE if translates else _TRANSCRIBE]
    if language:
        require(not translates, "language is not supported here: a translation is in English")
        is_word = _LANGUAGE.fullmatch(language) is not None
        require(is_word, f"language must be a code such as en, not {language[:50]!r}")
        parts.append(f"The language is {language}.")
    if prompt.strip():
        parts.append(f"Words and style that are likely: {prompt.strip()}")
    return "\n".join(parts)


def transcription_request(
    model: str,
    sound: bytes,
    told: str,
    defaults: ModelDefaults,
    *,
    begun: str = "",
    temperature: float = 0.0,
    max_tokens: int | None = None,
    is_streamed: bool = False,
) -> GenerationRequest:
    """Return the request for a transcript.

    Args:
        model: its name as the client wrote it.
        sound: a file.
        told: see `instruction`.
        defaults: of the model.
        begun: the start of the transcript, which the answer continues.
        temperature: of sampling.
        max_tokens: of the answer; None: the model's default.
        is_streamed: whether the text is wanted as it is generated.

    Raises:
        RequestError: if the model does not hear.
    """
    check_can(defaults, "audio", model, "audio")
    request = parse_limited(
        ModelBody(model=model),
        defaults,
        ("max_tokens", max_tokens),
        fields={"temperature": temperature},
        is_streamed=is_streamed,
    )
    messages: list[dict[str, Any]] = [{"role": "user", "content": told, "images": [sound]}]
    if begun:
        messages.append({"role": "assistant", "content": begun})
    conversation = Conversation(messages=tuple(messages), think=False, is_whole=True, plain=told)
    return with_conversation(request, conversation, defaults)
