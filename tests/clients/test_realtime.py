"""Live transcription with OpenAI's package and a plain client of WebSockets."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from support.checkpoints import make_checkpoint
from support.serving import Server, start_server
from support.sounds import Floats, babble, pause
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection
from websockets.sync.client import connect as connect_plainly
from websockets.typing import Subprotocol

from tampu.convert import convert

pytestmark = [pytest.mark.client, pytest.mark.server]

HEARING, DEAF, KEY = "gemma4_unified_hearing", "demo", "use-this-0123456789"
RATE = 24_000
WAIT_S = 180
# OpenAI's package calls `websockets` in a way that is deprecated.
LEGACY = pytest.mark.filterwarnings("ignore:connect.. must be used:DeprecationWarning")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    checkpoint = make_checkpoint(HEARING, tmp_path_factory.mktemp("checkpoint") / "c")
    convert(checkpoint, folder / f"{HEARING}.gguf", "F32")
    home = tmp_path_factory.mktemp("home")
    server = start_server(folder, home, TAMPU_USE_API_KEY=KEY)
    yield server
    server.end()


def pcm(samples: Floats) -> bytes:
    """Return a sound of 16,000 samples a second as OpenAI's clients send it."""
    count = len(samples) * 3 // 2
    finer = np.interp(np.arange(count) / 1.5, np.arange(len(samples)), samples)
    return (np.clip(finer, -1, 1) * 32767).astype("<i2").tobytes()


def text_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def heard(**given: Any) -> Any:
    return {"type": "transcription", "audio": {"input": given}}


def end_of(connection: Any, count: int = 1) -> list[Any]:
    """Return the events up to the end of so many transcripts."""
    events: list[Any] = []
    for event in connection:
        events.append(event)
        assert event.type != "error", event
        count -= event.type.endswith(("transcription.completed", "transcription.failed"))
        if not count:
            break
    return events


def client_of(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0)


@LEGACY
def test_two_sentences_are_two_items_with_their_transcripts(server: Server) -> None:
    talk = np.concatenate([pause(1), babble(2.4, 1), pause(1, 2), babble(1, 3), pause(1, 4)])
    data = pcm(talk)
    with (
        client_of(server) as client,
        client.realtime.connect(extra_query={"intent": "transcription"}) as connection,
    ):
        connection.session.update(session=heard(transcription={"model": HEARING}))
        for start in range(0, len(data), RATE // 5):
            connection.input_audio_buffer.append(audio=text_of(data[start : start + RATE // 5]))
        events = end_of(connection, 2)
    kinds = [event.type for event in events]
    assert kinds[:2] == ["session.created", "session.updated"]
    assert events[1].session.audio.input.transcription.model == HEARING
    started = [e for e in events if e.type == "input_audio_buffer.speech_started"]
    committed = [e for e in events if e.type == "input_audio_buffer.committed"]
    completed = [e for e in events if e.type.endswith("transcription.completed")]
    ids = [event.item_id for event in started]
    assert ids == [event.item_id for event in committed] == [event.item_id for event in completed]
    assert committed[1].previous_item_id == ids[0]
    for event in completed:
        deltas = [
            e.delta for e in events if e.type.endswith("delta") and e.item_id == event.item_id
        ]
        assert "".join(deltas) == event.transcript
        assert event.usage.input_tokens > 25
        assert event.usage.output_tokens > 0


@LEGACY
@pytest.mark.parametrize(
    ("form", "data"),
    [
        ("audio/pcm", pcm(babble(1.5))),
        ("audio/pcmu", bytes(range(256)) * 40),
        ("audio/pcma", bytes(range(256)) * 40),
    ],
)
def test_the_client_may_commit_and_send_g711(server: Server, form: str, data: bytes) -> None:
    with client_of(server) as client, client.realtime.connect(model=HEARING) as connection:
        connection.session.update(session=heard(format={"type": form}, turn_detection=None))
        connection.input_audio_buffer.append(audio=text_of(data))
        connection.input_audio_buffer.commit()
        events = end_of(connection)
    assert not [event for event in events if event.type.startswith("input_audio_buffer.speech")]
    assert events[-1].type == "conversation.item.input_audio_transcription.completed"


def plainly(server: Server, query: str = "", **more: Any) -> ClientConnection:
    url = f"{server.url.replace('http', 'ws', 1)}/v1/realtime{query}"
    headers = {"authorization": f"Bearer {KEY}"}
    return connect_plainly(url, **{"additional_headers": headers, **more})


def answer(connection: ClientConnection) -> Any:
    return json.loads(connection.recv(WAIT_S))


def test_the_events_until_2025_are_still_answered(server: Server) -> None:
    headers = {"authorization": f"Bearer {KEY}", "OpenAI-Beta": "realtime=v1"}
    session = {
        "input_audio_format": "g711_ulaw", "turn_detection": None,
        "input_audio_transcription": {"model": HEARING},
    }  # fmt: skip
    with plainly(server, "?intent=transcription", additional_headers=headers) as connection:
        assert answer(connection)["type"] == "transcription_session.created"
        connection.send(json.dumps({"type": "transcription_session.update", "session": session}))
        updated = answer(connection)
        assert updated["type"] == "transcription_session.updated"
        assert updated["session"]["input_audio_format"] == "g711_ulaw"
        assert updated["session"]["turn_detection"] is None
        assert updated["session"]["input_audio_transcription"]["model"] == HEARING
        sound = text_of(bytes(8000))
        connection.send(json.dumps({"type": "input_audio_buffer.append", "audio": sound}))
        connection.send(json.dumps({"type": "input_audio_buffer.commit"}))
        kinds = [answer(connection)["type"] for _ in range(2)]
    assert kinds == ["input_audio_buffer.committed", "conversation.item.created"]


def deaf(name: str) -> dict[str, Any]:
    return {"type": "session.update", "session": heard(transcription={"model": name})}


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ("{", "invalid JSON"),
        ("[1]", "must be an object"),
        ("[" * 100_000, "must be an object"),
        ('{"type": ' + "[" * 100_000, "type must be a string|invalid JSON"),
        ("\x00", "invalid JSON"),
        ({}, "type"),
        ({"type": "response.create"}, "a session only transcribes"),
        ({"type": "session.update"}, "session is required"),
        ({"type": "session.update", "session": {"type": "realtime"}}, "does not speak"),
        ({"type": "input_audio_buffer.append"}, "audio is required"),
        ({"type": "input_audio_buffer.append", "audio": "?"}, "audio is not valid base64"),
        ({"type": "input_audio_buffer.append", "audio": text_of(b"abc")}, "send whole samples"),
        ({"type": "input_audio_buffer.append", "audio": "A" * (21 << 20)}, "send it in parts"),
        ({"type": "input_audio_buffer.commit"}, "100 ms are needed"),
        (deaf(DEAF), "does not support audio"),
        (deaf("nothing"), "model 'nothing' not found"),
    ],
)
def test_what_is_wrong_is_an_event_and_the_session_goes_on(
    server: Server, sent: Any, message: str
) -> None:
    with plainly(server, max_size=None) as connection:
        assert answer(connection)["type"] == "session.created"
        event = sent if isinstance(sent, str) else json.dumps({"event_id": "mine", **sent})
        connection.send(event)
        error = answer(connection)
        assert error["type"] == "error"
        assert re.search(message, error["error"]["message"]), error
        if not isinstance(sent, str) and sent:
            assert error["error"]["event_id"] == "mine"
        connection.send(json.dumps({"type": "input_audio_buffer.clear"}))
        assert answer(connection)["type"] == "input_audio_buffer.cleared"


@pytest.mark.parametrize(
    ("query", "more", "status"),
    [
        ("", {"additional_headers": {}}, 401),
        ("", {"additional_headers": {"authorization": "Bearer wrong-0123456789"}}, 401),
        ("", {"origin": "https://other.example"}, 403),
        ("?intent=conversation", {}, 400),
    ],
)
def test_a_connection_is_refused_as_requests_are(
    server: Server, query: str, more: dict[str, Any], status: int
) -> None:
    with pytest.raises(InvalidStatus) as refused, plainly(server, query, **more):
        pass
    assert refused.value.response.status_code == status
    assert json.loads(refused.value.response.body)["error"]["message"]


def test_a_browser_names_its_key_among_the_subprotocols(server: Server) -> None:
    names = [Subprotocol("realtime"), Subprotocol(f"openai-insecure-api-key.{KEY}")]
    with plainly(
        server, additional_headers={}, subprotocols=names, origin=server.url
    ) as connection:
        assert connection.subprotocol == "realtime"
        assert answer(connection)["type"] == "session.created"


def test_a_request_that_is_no_websocket_is_426(server: Server) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    found = httpx.get(f"{server.url}/v1/realtime", headers=headers)
    assert found.status_code == 426
    assert "connect with a client of WebSockets" in found.json()["error"]["message"]
    upgrade = {**headers, "connection": "upgrade", "upgrade": "websocket"}
    posted = httpx.post(f"{server.url}/v1/realtime", headers=upgrade)
    assert posted.status_code == 405
