"""The settings of a session, in both forms: what is not named stays, what is wrong is named."""

from __future__ import annotations

from typing import Any

import pytest

from tampu.audio.voice_activity import VoiceActivity
from tampu.errors import RequestError
from tampu.server.features.speech.realtime.settings import SessionSettings, updated, updated_before
from tampu.server.features.speech.transcription import SpeechTask


def heard(**given: Any) -> dict[str, Any]:
    return {"type": "transcription", "audio": {"input": given}}


def test_defaults_are_those_of_openai() -> None:
    shown = SessionSettings().shown("sess_1")["audio"]["input"]
    assert shown["format"] == {"type": "audio/pcm", "rate": 24000}
    assert shown["turn_detection"] == {
        "type": "server_vad", "threshold": 0.5, "prefix_padding_ms": 300,
        "silence_duration_ms": 500,
    }  # fmt: skip
    assert SessionSettings().activity == VoiceActivity()


def test_what_an_update_does_not_name_stays() -> None:
    first = updated(SessionSettings(), heard(transcription={"model": "m", "language": "de"}))
    second = updated(first, heard(turn_detection={"threshold": 0.7}))
    third = updated(second, heard(transcription={"prompt": "Ada"}))
    assert third.transcription is not None
    assert (third.transcription.model, third.transcription.language) == ("m", "de")
    assert third.activity == VoiceActivity(threshold=0.7)
    assert third.task == SpeechTask(language="de", prompt="Ada")
    off = updated(third, heard(turn_detection=None, transcription=None))
    assert off.activity is None
    assert off.transcription is None
    assert updated(off, heard(turn_detection={})).activity == VoiceActivity()


def test_the_form_until_2025_says_the_same() -> None:
    old = updated_before(
        SessionSettings(),
        {
            "input_audio_format": "g711_ulaw",
            "input_audio_transcription": {"model": "m", "language": "de"},
            "turn_detection": {"type": "server_vad", "silence_duration_ms": 700},
            "input_audio_noise_reduction": None,
        },
    )
    new = updated(
        SessionSettings(),
        heard(
            format={"type": "audio/pcmu"},
            transcription={"model": "m", "language": "de"},
            turn_detection={"type": "server_vad", "silence_duration_ms": 700},
        ),
    )
    assert old == new
    assert old.shown_before("sess_1")["input_audio_format"] == "g711_ulaw"


@pytest.mark.parametrize(
    ("session", "message"),
    [
        ({"type": "realtime"}, "session.type must be transcription, not 'realtime'"),
        ({"audio": 5}, "audio must be an object"),
        ({"audio": {"input": [1]}}, "audio.input must be an object"),
        (heard(format={"type": "audio/opus"}), "format.type"),
        (heard(format={"type": "audio/pcm", "rate": 16000}), "format.rate must be 24000 for"),
        (heard(turn_detection={"type": "semantic_vad"}), "must be server_vad; null: commit"),
        (heard(turn_detection={"threshold": 2}), "turn_detection.threshold"),
        (heard(turn_detection={"silence_duration_ms": 0}), "turn_detection.silence_duration_ms"),
        (heard(turn_detection={"idle_timeout_ms": 5000}), "idle_timeout_ms is not supported"),
        (heard(transcription={"model": 5}), "transcription.model"),
        (heard(transcription={"language": "?!"}), "language must be a code"),
        (heard(transcription={"delay": "low"}), "transcription.delay is not supported"),
        (heard(transcription={"keywords": ["a"]}), "put them into prompt"),
        (heard(noise_reduction={"type": "near_field"}), "noise_reduction must be null"),
        ({"include": ["item.input_audio_transcription.logprobs"]}, "include must be empty"),
    ],
)
def test_what_is_wrong_is_named(session: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        updated(SessionSettings(), session)


def test_an_unknown_format_of_the_old_form_is_named() -> None:
    with pytest.raises(RequestError, match="input_audio_format must be one of pcm16, g711_ulaw"):
        updated_before(SessionSettings(), {"input_audio_format": "mp3"})
