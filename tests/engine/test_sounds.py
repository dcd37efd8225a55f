"""Sounds of requests: decoded once, with an end by their length, steered, deterministic."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.sounds import sound, wav

from tampu.audio.features import Samples
from tampu.audio.sandboxed import SandboxedAudioDecoder
from tampu.engine.backend import Running
from tampu.engine.engine import Engine
from tampu.engine.prompts import MEDIA_MARKER, ChatPrompt, Prompt, TextPrompt
from tampu.engine.requests import Generate
from tampu.engine.sounds import spoken_tokens
from tampu.errors import RequestError
from tampu.runner.events import Done, Failed
from tampu.runner.generate_options import GenerateOptions
from tampu.runner.steering_options import Steering

SECONDS = 1.5
FILE = wav(sound(SECONDS))
PROMPTS: dict[str, Prompt] = {
    "text": TextPrompt(f"a{MEDIA_MARKER}b", (FILE,)),
    "chat": ChatPrompt(messages=({"role": "user", "content": "What?", "media": [FILE]},)),
}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.load("digits", threads=1, slots=2, deterministic=True) as engine:
        yield engine


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The files that are decoded."""
    files, decode = list[bytes](), SandboxedAudioDecoder.decode

    def noting(self: SandboxedAudioDecoder, data: bytes) -> Samples:
        files.append(data)
        return decode(self, data)

    monkeypatch.setattr(SandboxedAudioDecoder, "decode", noting)
    return files


def answer(engine: Engine, kind: str, *, is_transcript: bool, most: int | None = 90) -> int:
    """Return how many tokens an answer without end has."""
    options = GenerateOptions(temperature=0.0, ignore_eos=True, max_tokens=most)
    running = engine.run(Generate(PROMPTS[kind], options, is_transcript=is_transcript))
    assert isinstance(running, Running)
    replies: queue.SimpleQueue[object] = queue.SimpleQueue()
    running.begin(replies.put)
    while not isinstance(reply := replies.get(timeout=300), Done):
        assert not isinstance(reply, Failed)
    return reply.usage.generated_tokens


@pytest.mark.parametrize("kind", PROMPTS)
def test_a_transcript_ends_by_the_length_of_its_sound_which_is_decoded_once(
    engine: Engine, decoded: list[bytes], kind: str
) -> None:
    assert answer(engine, kind, is_transcript=True) == spoken_tokens(SECONDS)
    assert decoded == [FILE]
    assert answer(engine, kind, is_transcript=True, most=None) == spoken_tokens(SECONDS)
    assert answer(engine, kind, is_transcript=True, most=5) == 5
    assert answer(engine, kind, is_transcript=False) == 90


def ask(samples: Samples) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "What?", "audio": [samples]}]


def test_a_request_with_a_sound_is_steered_at_all_of_its_tokens(engine: Engine) -> None:
    message, points = ask(sound(SECONDS)), ["layer_outputs:1", "hidden_states:0"]
    plain, again = (engine.capture(message, points) for _ in range(2))
    assert plain.encoded() == again.encoded()  # although the sound was encoded in between
    width = plain["layer_outputs"][1].shape[1]
    vector = np.random.default_rng(0).standard_normal((width,), np.float32)
    steered = engine.capture(message, points, steering=Steering.add(points[0], vector, 0.5))
    expected = plain["layer_outputs"][1] + 0.5 * vector
    np.testing.assert_allclose(steered["layer_outputs"][1], expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(steered["hidden_states"][0], plain["hidden_states"][0])


def test_a_trace_names_what_is_encoded(engine: Engine, tmp_path: Path) -> None:
    with engine.trace(tmp_path / "trace.json"):
        engine.chat(ask(sound(0.7, 5)), max_tokens=1)
    events = json.loads((tmp_path / "trace.json").read_text())
    encoded = [event["args"] for event in events if event.get("name") == "sound"]
    assert encoded
    assert all({*each} == {"sound", "rows"} for each in encoded)
    assert "image" not in {event.get("name") for event in events}


def test_what_an_encoder_returns_cannot_be_steered(engine: Engine) -> None:
    with pytest.raises(RequestError, match="steering: the model has no point 'audio_hidden_states"):
        engine.chat(ask(sound(1.0)), steering=Steering.scale("audio_hidden_states", 2.0))
