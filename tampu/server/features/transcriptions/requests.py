"""The forms of transcriptions and translations.

Fields that are not known are ignored, as in the other APIs; those that would change the answer are
refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from tampu.audio import check_audio
from tampu.errors import RequestError, require
from tampu.server.fields.transcription import instruction, transcription_request
from tampu.server.serving.generation_request import GenerationRequest
from tampu.server.serving.model_defaults import ModelDefaults

FORMATS = ("json", "text")
_REFUSED = (
    "timestamp_granularities[]", "include[]", "known_speaker_names[]",
    "known_speaker_references[]", "keywords[]", "languages[]",
)  # fmt: skip
_FLAGS = {"true": True, "1": True, "false": False, "0": False, "": False}


class ModelField(msgspec.Struct):
    """The model of a form."""

    model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptionForm:
    """`POST /v1/audio/transcriptions` and `/v1/audio/translations`.

    Attributes:
        file: the sound.
        model: the name as the client wrote it.
        response_format: one of `FORMATS`.
        instruction: what the model is asked to do.
        temperature: of sampling.
        stream: whether the text is sent as it is generated.
    """

    file: bytes
    model: str
    response_format: str
    instruction: str
    temperature: float
    stream: bool


def read_form(
    fields: Mapping[str, str], file: bytes | None, model: str, *, translates: bool
) -> TranscriptionForm:
    """Return a form.

    Args:
        fields: of the form, without its file.
        file: the content of `file`; None: there was none.
        model: its name, or that of the default.
        translates: into English, else the language that is spoken is kept.

    Raises:
        RequestError: naming the field that is wrong.
    """
    if file is None:
        raise RequestError("file is required: the sound to transcribe")
    try:
        check_audio(file)
    except RequestError as error:
        raise RequestError(f"file: {error}") from None
    for name in _REFUSED:
        require(name not in fields, f"{name} is not supported")
    chunking = fields.get("chunking_strategy", "auto")
    require(chunking == "auto", "chunking_strategy must be auto: a sound is heard as a whole")
    form = fields.get("response_format", "json")
    stream = fields.get("stream", "").lower()
    require(form in FORMATS, f"response_format must be {' or '.join(FORMATS)}, not {form[:50]!r}")
    require(stream in _FLAGS, f"stream must be true or false, not {stream[:50]!r}")
    return TranscriptionForm(
        file=file,
        model=model,
        response_format=form,
        instruction=instruction(
            fields.get("language", ""), fields.get("prompt", ""), translates=translates
        ),
        temperature=_temperature(fields.get("temperature", "0")),
        stream=_FLAGS[stream],
    )


def parse_transcription(form: TranscriptionForm, defaults: ModelDefaults) -> GenerationRequest:
    """Return the request for a transcript."""
    return transcription_request(
        form.model,
        form.file,
        form.instruction,
        defaults,
        temperature=form.temperature,
        is_streamed=form.stream,
    )


def _temperature(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    require(0 <= found <= 1, f"temperature must be a number from 0 to 1, not {text[:50]!r}")
    return found
