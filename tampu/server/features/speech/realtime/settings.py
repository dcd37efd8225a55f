"""The settings of a session: their fields, in OpenAI's form of today and in the one before."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from tampu.audio.pcm import Encoding, rate_of
from tampu.audio.voice_activity import VoiceActivity
from tampu.errors import RequestError, require
from tampu.server.features.speech.transcription import SpeechTask
from tampu.settings.type_errors import convert

_OLD_FORMATS = {"pcm16": "audio/pcm", "g711_ulaw": "audio/pcmu", "g711_alaw": "audio/pcma"}
_OLD_NAMES = {new: old for old, new in _OLD_FORMATS.items()}

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Padding = Annotated[int, msgspec.Meta(ge=0, le=5_000)]
Silence = Annotated[int, msgspec.Meta(ge=10, le=10_000)]


class AudioFormat(msgspec.Struct, frozen=True, kw_only=True):
    """How the sound is sent."""

    type: Encoding = "audio/pcm"
    rate: int | None = None


class Transcription(msgspec.Struct, frozen=True, kw_only=True):
    """Which model transcribes, and its instruction.

    Attributes:
        model: its name; None: the only one that hears.
        language: a code or a name.
        prompt: words and style that are likely.
        delay: refused, as the two that follow.
        keywords: refused.
        languages: refused.
    """

    model: str | None = None
    language: str | None = None
    prompt: str | None = None
    delay: str | None = None
    keywords: list[str] | None = None
    languages: list[str] | None = None


class TurnDetection(msgspec.Struct, frozen=True, kw_only=True):
    """When speech begins and ends; see `VoiceActivity`."""

    type: Literal["server_vad", "semantic_vad"] = "server_vad"
    threshold: Share = 0.5
    prefix_padding_ms: Padding = 300
    silence_duration_ms: Silence = 500
    idle_timeout_ms: int | None = None


class SessionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a session: `audio.input`, and `include`.

    Attributes:
        format: of the sound.
        transcription: None: nothing is transcribed.
        turn_detection: None: the client commits.
        noise_reduction: refused.
        include: refused.
    """

    format: AudioFormat = AudioFormat()
    transcription: Transcription | None = Transcription()
    turn_detection: TurnDetection | None = TurnDetection()
    noise_reduction: dict[str, Any] | None = None
    include: list[str] | None = None

    @property
    def task(self) -> SpeechTask:
        """What is wanted of the model."""
        asked = self.transcription or Transcription()
        return SpeechTask(language=asked.language or "", prompt=(asked.prompt or "").strip())

    @property
    def activity(self) -> VoiceActivity | None:
        """What counts as speech; None: the client says it."""
        rule = self.turn_detection
        if rule is None:
            return None
        return VoiceActivity(
            threshold=rule.threshold,
            prefix_padding_ms=rule.prefix_padding_ms,
            silence_duration_ms=rule.silence_duration_ms,
        )

    def shown(self, id: str) -> dict[str, Any]:
        """Return the session as OpenAI's API shows it."""
        given = self.format.type
        form = {"type": given, "rate": rate_of(given)} if given == "audio/pcm" else {"type": given}
        heard = {
            "format": form,
            "noise_reduction": None,
            "transcription": _shown(self.transcription),
            "turn_detection": _shown(self.turn_detection),
        }
        return {
            "id": id,
            "object": "realtime.transcription_session",
            "type": "transcription",
            "audio": {"input": heard},
            "include": None,
        }

    def shown_before(self, id: str) -> dict[str, Any]:
        """Return the session as OpenAI's API showed it until 2025."""
        return {
            "id": id,
            "object": "realtime.transcription_session",
            "input_audio_format": _OLD_NAMES[self.format.type],
            "input_audio_noise_reduction": None,
            "input_audio_transcription": _shown(self.transcription),
            "turn_detection": _shown(self.turn_detection),
            "include": None,
        }


def updated(settings: SessionSettings, session: dict[str, Any]) -> SessionSettings:
    """Return settings with what `session.update` changes; what it does not name stays.

    Raises:
        RequestError: naming the field that is wrong or not supported.
    """
    kind = session.get("type", "transcription")
    if kind != "transcription":
        raise RequestError(
            f"session.type must be transcription, not {str(kind)[:50]!r}: this server does not "
            "speak; send text to /v1/chat/completions"
        )
    audio = _object(session.get("audio"), "audio")
    changes = _object(audio.get("input"), "audio.input")
    if "include" in session:
        changes = {**changes, "include": session["include"]}
    return _changed(settings, changes)


def updated_before(settings: SessionSettings, session: dict[str, Any]) -> SessionSettings:
    """Return settings with what `transcription_session.update` changes, the form until 2025.

    Raises:
        RequestError: as `updated`.
    """
    changes: dict[str, Any] = {}
    for name in ("turn_detection", "include"):
        if name in session:
            changes[name] = session[name]
    for old in ("input_audio_transcription", "input_audio_noise_reduction"):
        if old in session:
            changes[old.removeprefix("input_audio_")] = session[old]
    if "input_audio_format" in session:
        given = session["input_audio_format"]
        known = ", ".join(_OLD_FORMATS)
        require(
            isinstance(given, str) and given in _OLD_FORMATS,
            f"input_audio_format must be one of {known}, not {str(given)[:50]!r}",
        )
        changes["format"] = {"type": _OLD_FORMATS[given], "rate": None}
    return _changed(settings, changes)


def _changed(settings: SessionSettings, changes: dict[str, Any]) -> SessionSettings:
    current = msgspec.to_builtins(settings)
    found = convert(_merged(current, changes), SessionSettings, "session")
    _check(found)
    return found


def _merged(current: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return an object with the fields of another, object by object."""
    merged = dict(current)
    for name, value in changes.items():
        before = merged.get(name)
        both = isinstance(before, dict) and isinstance(value, dict)
        merged[name] = _merged(before or {}, value) if both else value
    return merged


def _check(settings: SessionSettings) -> None:
    form, asked = settings.format, settings.transcription or Transcription()
    rate = rate_of(form.type)
    require(
        form.rate in (None, rate),
        f"format.rate must be {rate} for {form.type}, not {form.rate}",
    )
    require(settings.noise_reduction is None, "noise_reduction must be null: it is not supported")
    require(not settings.include, "include must be empty: there are no log probabilities")
    require(asked.delay is None, "transcription.delay is not supported")
    require(not asked.keywords, "transcription.keywords is not supported: put them into prompt")
    require(not asked.languages, "transcription.languages is not supported: give one language")
    rule = settings.turn_detection or TurnDetection()
    require(
        rule.type == "server_vad", "turn_detection.type must be server_vad; null: commit yourself"
    )
    require(rule.idle_timeout_ms is None, "turn_detection.idle_timeout_ms is not supported")
    _ = settings.task  # raises the error of a wrong language


def _object(given: object, name: str) -> dict[str, Any]:
    require(given is None or isinstance(given, dict), f"{name} must be an object")
    return dict(given) if isinstance(given, dict) else {}


def _shown(part: msgspec.Struct | None) -> dict[str, Any] | None:
    if part is None:
        return None
    fields: dict[str, Any] = msgspec.to_builtins(part)
    needed = ("model", "language", "prompt")
    return {name: value for name, value in fields.items() if value is not None or name in needed}
