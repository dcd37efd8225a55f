"""Sounds in chats, sent with the packages of OpenAI, Ollama and Anthropic to a server."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import anthropic
import numpy as np
import ollama
import openai
import pytest
from support.checkpoints import make_checkpoint
from support.serving import Server, start_server
from support.sounds import encoded, sound, wav
from support.videos import scene, video

from tampu.convert import convert
from tools.train_digits.speech import Speaker

pytestmark = [pytest.mark.client, pytest.mark.server]

NAMES = ("gemma4_unified_hearing", "gemma4_unified_seeing")
HEARING, SEEING = NAMES
TOKENS = 25  # of a second


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    for name in NAMES:
        checkpoint = make_checkpoint(name, tmp_path_factory.mktemp("checkpoints") / name)
        convert(checkpoint, folder / f"{name}.gguf", "F32")
    server = start_server(folder, tmp_path_factory.mktemp("home"))
    yield server
    server.end()


def part(file: bytes) -> dict[str, Any]:
    data = base64.b64encode(file).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


def ask(server: Server, *parts: dict[str, Any], model: str = HEARING, most: int = 2) -> Any:
    messages: Any = [{"role": "user", "content": [*parts, {"type": "text", "text": "What?"}]}]
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
        return client.chat.completions.create(
            model=model, messages=messages, max_tokens=most, temperature=0
        )


def test_sounds_are_parts_of_a_chat(server: Server) -> None:
    file = wav(sound(8.0))
    none, one, two = (ask(server, *parts).usage for parts in ((), (part(file),), (part(file),) * 2))
    assert one.prompt_tokens - none.prompt_tokens == 8 * TOKENS + 2
    assert two.prompt_tokens - one.prompt_tokens == 8 * TOKENS + 2
    assert two.prompt_tokens_details.cached_tokens >= 8 * TOKENS


def test_the_format_follows_from_the_content(server: Server) -> None:
    none, flac = (
        ask(server, *parts).usage
        for parts in ((), (part(encoded(sound(2.0), "flac", rate=16_000)),))
    )
    assert flac.prompt_tokens - none.prompt_tokens == 2 * TOKENS + 2


def test_a_sound_may_be_a_data_uri(server: Server) -> None:
    uri = f"data:audio/wav;base64,{base64.b64encode(wav(sound(1.0))).decode()}"
    none, one = (
        ask(server, *parts).usage
        for parts in ((), ({"type": "audio_url", "audio_url": {"url": uri}},))
    )
    assert one.prompt_tokens - none.prompt_tokens == TOKENS + 2


def test_sounds_are_parts_of_a_response(server: Server) -> None:
    def tokens(*parts: dict[str, Any]) -> int:
        content: Any = [*parts, {"type": "input_text", "text": "What?"}]
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
            answer = client.responses.create(
                model=HEARING, input=[{"role": "user", "content": content}], max_output_tokens=2
            )
        return answer.usage.input_tokens

    assert tokens(part(wav(sound(2.0)))) - tokens() == 2 * TOKENS + 2


def test_sounds_are_images_of_ollamas_messages(server: Server) -> None:
    options = {"num_predict": 2, "temperature": 0}
    with ollama.Client(server.url) as client:
        chats, completions = [], []
        for files in ([], [wav(sound(2.0))]):
            message = {"role": "user", "content": "What?", "images": files}
            chats.append(client.chat(HEARING, [message], options=options))
            completions.append(client.generate(HEARING, "What?", images=files, options=options))
    for none, one in (chats, completions):
        assert one.prompt_eval_count - none.prompt_eval_count == 2 * TOKENS + 2


@pytest.mark.parametrize(
    "file",
    [wav(np.zeros(16_000, np.float32)), wav(sound(1.0), 192_000), wav(sound(1.0), 8000)],
    ids=["silence", "192 kHz", "8 kHz"],
)
def test_silence_and_every_rate_are_sounds(server: Server, file: bytes) -> None:
    assert ask(server, part(file)).usage.prompt_tokens > 2


def test_too_many_sounds_are_named(server: Server) -> None:
    with pytest.raises(openai.BadRequestError, match="16 images and sounds can be given, not 17"):
        ask(server, *[part(wav(sound(0.1)))] * 17)


def test_the_built_in_model_hears_what_is_said(server: Server) -> None:
    file = wav(np.pad(Speaker().say("four zero seven two", "en-us", 160, 50).samples, 4000))
    asked: Any = {"file": ("code.wav", file), "model": "digits"}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
        assert client.audio.transcriptions.create(**asked).text == "4 0 7 2"
        events = [*client.audio.transcriptions.create(**asked, stream=True)]
    deltas = [event.delta for event in events if event.type == "transcript.text.delta"]
    assert "".join(deltas) == "4 0 7 2"
    assert len(deltas) > 1
    answer = ask(server, part(file), model="digits", most=20)
    assert answer.choices[0].message.content == "4 0 7 2"


def test_anthropics_api_refuses_a_sound_by_name(server: Server) -> None:
    data = base64.b64encode(wav(sound(0.1))).decode()
    source = {"type": "base64", "media_type": "image/png", "data": data}
    with anthropic.Anthropic(base_url=server.url, api_key="x", max_retries=0) as client:
        for block in ({"type": "image", "source": source}, {"type": "audio", "source": source}):
            messages: Any = [{"role": "user", "content": [block]}]
            with pytest.raises(anthropic.BadRequestError, match="has no sounds: send them to /v1/"):
                client.messages.create(model=HEARING, max_tokens=2, messages=messages)


FLAC = encoded(sound(4.0), "flac", rate=16_000)
PLACE = r"messages\[0\].content\[0\]"


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_a_message_of_any_role_may_have_a_sound(server: Server, role: str) -> None:
    def tokens(content: Any) -> int:
        messages: Any = [{"role": role, "content": content}, {"role": "user", "content": "What?"}]
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
            answer = client.chat.completions.create(model=HEARING, messages=messages, max_tokens=2)
        assert answer.usage
        return answer.usage.prompt_tokens

    assert tokens([part(wav(sound(2.0))), {"type": "text", "text": "x"}]) - tokens("x") == (
        2 * TOKENS + 2
    )


def test_a_damaged_sound_is_named_by_its_place_in_ollamas_messages_too(server: Server) -> None:
    whole, damaged = wav(sound(0.2)), wav(sound(0.2))[:200]
    messages = [
        {"role": "system", "content": "You listen."},
        {"role": "user", "content": "a", "images": [whole]},
        {"role": "user", "content": "b", "images": [whole, damaged]},
    ]
    with (
        ollama.Client(server.url) as client,
        pytest.raises(ollama.ResponseError, match=r"^messages\[2\].images\[1\]: the sound is dama"),
    ):
        client.chat(HEARING, messages)


@pytest.mark.parametrize(
    ("given", "model", "told"),
    [
        (part(wav(sound(0.2))), SEEING, "does not support audio"),
        (part(b"GIF89a"), SEEING, "does not support audio"),
        (
            part(wav(sound(0.2))[:200]),
            HEARING,
            f"{PLACE}: the sound is damaged: its WAV file is tr",
        ),
        (part(FLAC[:9000]), HEARING, f"{PLACE}: the sound is damaged or truncated"),
        (part(wav(np.zeros(4_000_000, np.float32), 1000)), HEARING, "limit is 3600: cut it into"),
        (part(b"GIF89a"), HEARING, f"{PLACE}: the sound's format is not supported; supp"),
        (part(video(scene(2), "mp4")), HEARING, "the sound's format is not supported"),
        (part(b""), HEARING, "the sound is empty"),
        ({"type": "input_audio"}, HEARING, "input_audio needs input_audio with data"),
        ({"type": "audio_url", "audio_url": {"url": "https://a.b/c.wav"}}, HEARING, "not fetched"),
    ],
    ids=[
        "deaf",
        "deaf, GIF",
        "part of WAV",
        "part of FLAC",
        "over an hour",
        "GIF",
        "video",
        "empty",
        "none",
        "address",
    ],
)
def test_what_is_wrong_with_a_sound_is_said(
    server: Server, given: dict[str, Any], model: str, told: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=told):
        ask(server, given, model=model)
