"""A video in a chat, sent with OpenAI's package to a server."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from support.checkpoints import make_checkpoint
from support.serving import Server, start_server
from support.videos import scene, sound, video

from tampu.convert import convert

pytestmark = [pytest.mark.client, pytest.mark.server]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    for name in ("qwen3vl", "gemma3_vision"):
        checkpoint = make_checkpoint(name, tmp_path_factory.mktemp("checkpoints") / name)
        convert(checkpoint, folder / f"{name}.gguf", "F32")
    server = start_server(folder, tmp_path_factory.mktemp("home"))
    yield server
    server.end()


def ask(server: Server, *files: bytes, model: str = "qwen3vl") -> Any:
    uris = [f"data:video/mp4;base64,{base64.b64encode(file).decode()}" for file in files]
    parts: list[Any] = [{"type": "video_url", "video_url": {"url": uri}} for uri in uris]
    content: Any = [*parts, {"type": "text", "text": "What is this?"}]
    messages: Any = [{"role": "user", "content": content}]
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
        return client.chat.completions.create(
            model=model, messages=messages, max_tokens=4, temperature=0
        )


def test_videos_are_part_of_the_prompt(server: Server) -> None:
    data = video(scene(25), "mp4")
    none, one, two = (ask(server, *files).usage for files in ((), (data,), (data, data)))
    assert one.prompt_tokens - none.prompt_tokens == two.prompt_tokens - one.prompt_tokens
    assert one.prompt_tokens - none.prompt_tokens > 3 * 12  # three pairs of frames, and times
    assert two.prompt_tokens_details.cached_tokens >= one.prompt_tokens - none.prompt_tokens


@pytest.mark.parametrize(
    ("file", "model", "told"),
    [
        (sound(), "qwen3vl", "does not support audio"),
        (video(scene(9), "mp4")[:900], "qwen3vl", "the video is damaged"),
        (b"GIF89a", "qwen3vl", "the GIF image is damaged"),
        (video(scene(4), "mp4"), "gemma3_vision", "takes no videos, only images"),
    ],
    ids=["sound", "a part", "an image", "another model"],
)
def test_what_is_wrong_with_a_video_is_said(
    server: Server, file: bytes, model: str, told: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=told):
        ask(server, file, model=model)
