"""A session without a connection: its events, and what happens when the client leaves."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from typing import Any

import numpy as np
import pytest
from support.sounds import babble, pause
from support.waiting import until

from tampu.audio import Samples
from tampu.errors import ModelNotFoundError
from tampu.runner.events import Usage
from tampu.server.features.speech.realtime.session import Session
from tampu.server.features.speech.realtime.settings import SessionSettings, Transcription
from tampu.server.features.speech.realtime.transcriber import Heard


class Client:
    """Sends events and keeps the answers."""

    def __init__(self, settings: SessionSettings | None = None) -> None:
        self.events: list[dict[str, Any]] = []
        self.asked = self.cancelled = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.queue: asyncio.Queue[str | None] = asyncio.Queue()
        given = settings or SessionSettings()
        self.session = Session(self._send, self._ask, self._check, given, is_old=False)

    async def _send(self, event: dict[str, Any]) -> None:
        self.events.append(event)

    async def _ask(self, _: SessionSettings, sound: Samples, begun: str, __: str) -> Heard:
        self.asked += 1
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return Heard(f"{len(sound)}"[len(begun) :], Usage())

    def _check(self, settings: SessionSettings) -> None:
        if settings.transcription and settings.transcription.model == "none":
            raise ModelNotFoundError("model 'none' not found")

    def send(self, kind: str, **fields: Any) -> None:
        self.queue.put_nowait(json.dumps({"type": kind, **fields}))

    def say(self, *parts: Any) -> None:
        sound = np.repeat(np.concatenate(parts), 3)[::2]  # 24,000 a second
        data = (sound * 32767).astype("<i2").tobytes()
        self.send("input_audio_buffer.append", audio=base64.b64encode(data).decode())

    def types(self) -> list[str]:
        return [event["type"].removeprefix("conversation.item.") for event in self.events]

    async def talk(self) -> None:
        """Let the session answer what was sent, until the client leaves."""
        self.queue.put_nowait(None)
        await self.session.run(self.queue.get)


async def test_events_come_in_openais_order() -> None:
    client = Client()
    client.say(pause(1), babble(1.4), pause(1, 2))
    running = asyncio.create_task(client.session.run(client.queue.get))
    await until(lambda: "input_audio_transcription.completed" in client.types(), "a transcript")
    client.queue.put_nowait(None)
    await running
    assert client.types() == [
        "session.created", "input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed", "added", "done", "input_audio_transcription.delta",
        "input_audio_transcription.completed",
    ]  # fmt: skip
    started, stopped, committed = client.events[1:4]
    assert 600 <= started["audio_start_ms"] <= 800
    assert 2800 <= stopped["audio_end_ms"] <= 3000
    assert {event.get("item_id", started["item_id"]) for event in client.events} == {
        started["item_id"]
    }
    assert committed["previous_item_id"] is None
    assert client.events[-1]["transcript"] == client.events[-2]["delta"]


async def test_a_client_that_leaves_cancels_what_runs() -> None:
    client = Client()
    client.gate.clear()
    client.say(pause(1), babble(2))
    running = asyncio.create_task(client.session.run(client.queue.get))
    await until(lambda: client.asked, "a transcript")
    client.queue.put_nowait(None)
    await running
    assert client.cancelled == 1


async def test_a_model_that_is_not_there_is_an_error_at_once_and_the_session_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    client = Client(SessionSettings(transcription=Transcription(model="none")))
    client.send("session.update", event_id="mine", session={
        "type": "transcription", "audio": {"input": {"transcription": {"model": "none"}}}
    })  # fmt: skip
    client.send("session.update", session={
        "type": "transcription", "audio": {"input": {"transcription": {"model": "other"}}}
    })  # fmt: skip
    await client.talk()
    assert client.types() == ["session.created", "error", "error", "session.updated"]
    assert caplog.messages == ["404: model 'none' not found"] * 2
    first, second = client.events[1]["error"], client.events[2]["error"]
    assert (first["code"], first["event_id"]) == ("model_not_found", None)
    assert second["event_id"] == "mine"


async def test_without_transcription_speech_is_only_found() -> None:
    client = Client(SessionSettings(transcription=None))
    client.say(pause(1), babble(1), pause(1, 2))
    await client.talk()
    assert client.types()[-1] == "done"
    assert not client.asked


async def test_what_is_too_short_cannot_be_committed() -> None:
    client = Client(SessionSettings(turn_detection=None))
    client.say(pause(0.05))
    client.send("input_audio_buffer.commit")
    client.say(pause(0.1))
    client.send("input_audio_buffer.commit")
    await client.talk()
    assert client.types()[:3] == ["session.created", "error", "input_audio_buffer.committed"]
    assert client.events[1]["error"]["code"] == "input_audio_buffer_commit_empty"
