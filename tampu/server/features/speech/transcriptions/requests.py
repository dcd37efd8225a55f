"""The forms of transcriptions and translations.

Fields that are not known are ignored, as in the other APIs; those that would change the answer are
refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tampu.audio import check_audio
from tampu.audio.pieces import Cutting
from tampu.audio.voice_activity import VoiceActivity
from tampu.errors import RequestError, require
from tampu.server.features.speech.transcription import SpeechTask

FORMATS = ("json", "text", "srt", "vtt", "verbose_json")
_TIMED = FORMATS[2:]
_STREAMED = ("json", "text", "verbose_json")
_REFUSED = {
    "known_speaker_names[]": "no model here tells speakers apart",
    "known_speaker_references[]": "no model here tells speakers apart",
    "keywords[]": "write the words into prompt",
    "languages[]": "give one language, or none",
}
_LISTS = (*_REFUSED, "timestamp_granularities[]", "include[]")
_FLAGS = {"true": True, "1": True, "false": False, "0": False, "": False}
_TIMED_CUTTING = Cutting(joined_s=8.0, longest_s=15.0)  # what fits a subtitle
_LONGEST_PADDING_MS, _LONGEST_SILENCE_MS = 5_000, 30_000


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
        task: what is wanted.
        temperature: of sampling.
        stream: whether the text is sent as it is generated.
        with_logprobs: whether the log-probabilities of tokens are sent.
        cutting: where the sound is cut; None: it is heard as a whole.
    """

    file: bytes
    model: str
    response_format: str
    task: SpeechTask
    temperature: float
    stream: bool
    with_logprobs: bool
    cutting: Cutting | None


def read_form(
    lists: Mapping[str, Sequence[str]], file: bytes | None, model: str, *, translates: bool
) -> TranscriptionForm:
    """Return a form.

    Args:
        lists: the values of each field, without the file.
        file: the content of `file`; None: there was none.
        model: its name, or that of the default.
        translates: into English, else the language that is spoken is kept.

    Raises:
        RequestError: naming the field that is wrong.
    """
    lists = _named_lists(lists)
    fields = {name: values[-1] for name, values in lists.items()}
    if file is None:
        raise RequestError("file is required: the sound to transcribe")
    try:
        check_audio(file)
    except RequestError as error:
        raise RequestError(f"file: {error}") from None
    for name, reason in _REFUSED.items():
        require(name not in fields, f"{name} is not supported: {reason}")
    form = fields.get("response_format", "json")
    _check_format(form)
    _check_granularities(lists, form)
    stream = _flag(fields.get("stream", ""))
    require(
        not stream or form in _STREAMED,
        f"stream needs the response_format {', '.join(_STREAMED[:-1])} or {_STREAMED[-1]}, not "
        f"{form}; verbose_json has an event for each segment",
    )
    task = SpeechTask(
        translates=translates,
        language=fields.get("language", ""),
        prompt=fields.get("prompt", "").strip(),
    )
    return TranscriptionForm(
        file=file,
        model=model,
        response_format=form,
        task=task,
        temperature=_temperature(fields.get("temperature", "0")),
        stream=stream,
        with_logprobs=_wants_logprobs(lists, form),
        cutting=_cutting(fields, form),
    )


def _named_lists(lists: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return values by name; clients write a list as `include[]`, `include[0]` or `include`."""
    found: dict[str, list[str]] = {}
    for key, values in lists.items():
        name = f"{key.split('[', 1)[0]}[]"
        found.setdefault(name if name in _LISTS else key, []).extend(values)
    return found


def _check_format(form: str) -> None:
    require(
        form != "diarized_json",
        "response_format diarized_json is not supported: no model here tells speakers apart; "
        "verbose_json has segments with times",
    )
    known = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
    require(form in FORMATS, f"response_format must be {known}, not {form[:50]!r}")


def _check_granularities(lists: Mapping[str, Sequence[str]], form: str) -> None:
    name = "timestamp_granularities[]"
    given = lists.get(name, ())
    require(
        "word" not in given,
        f"{name} must be segment: models here give no times of words; leave word out",
    )
    for each in given:
        require(each == "segment", f"{name} must be segment, not {each[:50]!r}")
    require(not given or form == "verbose_json", f"{name} needs the response_format verbose_json")


def _wants_logprobs(lists: Mapping[str, Sequence[str]], form: str) -> bool:
    given = lists.get("include[]", ())
    for each in given:
        require(each == "logprobs", f"include[] must be logprobs, not {each[:50]!r}")
    require(not given or form == "json", "include[] needs the response_format json")
    return bool(given)


def _cutting(fields: Mapping[str, str], form: str) -> Cutting | None:
    """Return where a sound is cut: as the client says, else only if times are wanted."""
    name = "chunking_strategy"
    given = _vad_fields(fields)
    if given is None:
        word = fields.get(name)
        require(word in {None, "", "auto"}, f"{name} must be auto, or an object with a type")
        if form in _TIMED:
            return _TIMED_CUTTING
        return Cutting() if word else None
    kind = given.pop("type", None)
    require(kind == "server_vad", f"{name}.type must be server_vad, not {str(kind)[:50]!r}")
    usual = VoiceActivity()
    threshold = _number(given, "threshold", usual.threshold, 1)
    padding = _number(given, "prefix_padding_ms", usual.prefix_padding_ms, _LONGEST_PADDING_MS)
    silence = _number(given, "silence_duration_ms", usual.silence_duration_ms, _LONGEST_SILENCE_MS)
    require(not given, f"{name} has no {', '.join(given)[:100]}")
    activity = VoiceActivity(
        threshold=threshold, prefix_padding_ms=int(padding), silence_duration_ms=int(silence)
    )
    return Cutting(activity=activity, joined_s=0.0)


def _vad_fields(fields: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the object of `chunking_strategy`: JSON, or fields such as `...[type]`; None: none."""
    name = "chunking_strategy"
    if fields.get(name, "").startswith("{"):
        try:
            return msgspec.json.decode(fields[name], type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise RequestError(f"{name} is not valid JSON: {error}") from None
    start = f"{name}["
    found = {key[len(start) : -1]: value for key, value in fields.items() if key.startswith(start)}
    return found or None


def _number(given: dict[str, Any], name: str, usual: float, most: float) -> float:
    value = given.pop(name, usual)
    message = f"chunking_strategy.{name} must be a number from 0 to {most}, not {str(value)[:50]!r}"
    return _within(value, most, message)


def _within(value: object, most: float, message: str) -> float:
    try:
        found = float(str(value))
    except ValueError:
        found = -1.0
    require(0 <= found <= most, message)
    return found


def _flag(text: str) -> bool:
    word = text.lower()
    require(word in _FLAGS, f"stream must be true or false, not {text[:50]!r}")
    return _FLAGS[word]


def _temperature(text: str) -> float:
    return _within(text, 1, f"temperature must be a number from 0 to 1, not {text[:50]!r}")
