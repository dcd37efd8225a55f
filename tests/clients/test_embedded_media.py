"""Images and sounds as vectors, asked for with the packages of OpenAI, Cohere and Ollama."""

from __future__ import annotations

import base64
import io
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cohere
import httpx
import numpy as np
import openai
import pytest
from openai.types import CreateEmbeddingResponse
from PIL import Image
from support.checkpoints import make_checkpoint
from support.checkpoints.encoders import MEDIA
from support.seeing import picture
from support.serving import Server, start_server
from support.sounds import sound, wav

from tampu import Engine
from tampu.cli.show import as_text
from tampu.convert import convert
from tampu.engine.prompts import MEDIA_MARKER
from tampu.store.model_info import read_model_info
from tampu.store.modelfile import Modelfile

pytestmark = [pytest.mark.client, pytest.mark.server]

TEXT_ONLY = "embedding_gemma2"
SEEN, HEARD = picture(100, 150), wav(sound(1.5))


def png() -> bytes:
    file = io.BytesIO()
    Image.fromarray(SEEN).save(file, "PNG")
    return file.getvalue()


IMAGE, SOUND = base64.b64encode(png()).decode(), base64.b64encode(HEARD).decode()
URI = f"data:image/png;base64,{IMAGE}"
IMAGE_PART = {"type": "image_url", "image_url": {"url": URI}}
SOUND_PART = {"type": "input_audio", "input_audio": {"data": SOUND, "format": "wav"}}


def text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


PARTS = [IMAGE_PART, SOUND_PART, text_part("What?")]


@pytest.fixture(scope="module")
def embedders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name in (MEDIA, TEXT_ONLY):
        checkpoint = make_checkpoint(name, tmp_path_factory.mktemp("checkpoints") / name)
        convert(checkpoint, folder / f"{name}.gguf", "F32")
    return folder


@pytest.fixture(scope="module")
def server(embedders: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = start_server(embedders, tmp_path_factory.mktemp("home"), TAMPU_THREADS="1")
    yield server
    server.end()


@pytest.fixture(scope="module")
def known(embedders: Path) -> dict[str, list[float]]:
    """The vectors that the engine gives."""
    inputs: dict[str, Any] = {
        "all": {"content": "What?", "images": [png()], "audio": [HEARD]},
        "image": {"images": [png()]},
        "sound": {"audio": [HEARD]},
        "text": "What?",
    }
    with Engine.load(embedders / f"{MEDIA}.gguf", threads=1) as engine:
        found = engine.embed([*inputs.values()])
    return dict(zip(inputs, found.tolist(), strict=True))


def embedded(server: Server, path: str = "/v1/embeddings", **body: Any) -> list[list[float]]:
    asked = {"model": MEDIA, **body}
    response = httpx.post(f"{server.url}{path}", json=asked, timeout=300)
    assert response.status_code == 200, response.text
    return [each["embedding"] for each in response.json()["data"]]


def test_messages_are_one_vector(server: Server, known: dict[str, list[float]]) -> None:
    """vLLM's form; roles and the template are not in it."""
    system = {"role": "system", "content": [IMAGE_PART]}
    user = {"role": "user", "content": [SOUND_PART, text_part("What?")]}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
        for messages in ([{"role": "user", "content": PARTS}], [system, user]):
            body = {"model": MEDIA, "messages": messages, "encoding_format": "float"}
            found = client.post("/embeddings", body=body, cast_to=CreateEmbeddingResponse)
            [one] = found.data
            assert one.embedding == pytest.approx(known["all"], abs=1e-4)
            assert found.usage.prompt_tokens > 90


def test_inputs_with_and_without_images_are_a_batch(
    server: Server, known: dict[str, list[float]]
) -> None:
    """llama-server's forms: parts, and a marker where each image or sound is."""
    marked = {"prompt_string": f"{MEDIA_MARKER * 2}What?", "multimodal_data": [IMAGE, SOUND]}
    inputs = ["What?", {"content": [IMAGE_PART]}, {"content": [SOUND_PART]}, marked]
    found = embedded(server, input=[*inputs, {"content": PARTS}])
    expected = [known[name] for name in ("text", "image", "sound", "all", "all")]
    np.testing.assert_allclose(found, expected, atol=1e-4)
    plain = httpx.post(
        f"{server.url}/embedding", json={"model": MEDIA, "content": inputs[1]}, timeout=300
    ).json()
    np.testing.assert_allclose(plain[0]["embedding"][0], known["image"], atol=1e-4)


def test_the_order_of_parts_matters(server: Server, known: dict[str, list[float]]) -> None:
    [turned] = embedded(server, input=[{"content": PARTS[::-1]}])
    assert np.abs(np.array(turned) - known["all"]).max() > 1e-3


def test_ollamas_form_takes_images_and_sounds(
    server: Server, known: dict[str, list[float]]
) -> None:
    def ask(**body: Any) -> httpx.Response:
        asked = {"model": MEDIA, **body}
        return httpx.post(f"{server.url}/api/embed", json=asked, timeout=300)

    whole = ask(input="What?", images=[IMAGE, SOUND]).json()
    np.testing.assert_allclose(whole["embeddings"], [known["all"]], atol=1e-4)
    alone = ask(images=[IMAGE]).json()
    np.testing.assert_allclose(alone["embeddings"], [known["image"]], atol=1e-4)
    refused = ask(input=["a", "b"], images=[IMAGE])
    assert refused.status_code == 400
    assert refused.json()["error"] == "images are embedded with one text: input has several"


def test_coheres_package_embeds_images(server: Server, known: dict[str, list[float]]) -> None:
    with httpx.Client(timeout=300) as http:
        client = cohere.ClientV2(api_key="x", base_url=server.url, httpx_client=http)
        kinds: Any = {"model": MEDIA, "input_type": "image", "embedding_types": ["float"]}
        images = client.embed(images=[URI], **kinds).embeddings.float_
        image: Any = {"type": "image_url", "image_url": {"url": URI}}
        inputs: Any = [{"content": [image]}, {"content": [{"type": "text", "text": "What?"}]}]
        mixed = client.embed(inputs=inputs, **kinds)
    np.testing.assert_allclose(images or [], [known["image"]], atol=1e-4)
    expected = [known["image"], known["text"]]
    np.testing.assert_allclose(mixed.embeddings.float_ or [], expected, atol=1e-4)
    assert mixed.texts == ["", "What?"]


@pytest.mark.parametrize("is_private", [True, False])
def test_run_attaches_images_and_sounds(
    server: Server,
    known: dict[str, list[float]],
    embedders: Path,
    tmp_path: Path,
    is_private: bool,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nowhere = f"127.0.0.1:{closed.getsockname()[1]}"
    model = str(embedders / f"{MEDIA}.gguf") if is_private else MEDIA
    environment = {
        "HOME": str(tmp_path),
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "TAMPU_HOST": nowhere if is_private else server.url,
        "TAMPU_THREADS": "1",
    }
    files = {"seen.png": png(), "heard.wav": HEARD, "damaged.png": png()[:60]}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)

    def run(prompt: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tampu.cli.entry", "run", model, prompt],
            env=environment,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )

    for prompt, name in (("./seen.png", "image"), ("./seen.png ./heard.wav What?", "all")):
        done = run(prompt)
        assert done.returncode == 0, done.stderr
        assert "Added image 'seen.png'" in done.stderr
        assert ("Added sound 'heard.wav'" in done.stderr) == (name == "all")
        np.testing.assert_allclose(json.loads(done.stdout), known[name], atol=1e-4)
    refused = run("./damaged.png")
    assert refused.returncode
    assert "damaged.png: " in refused.stderr


DAMAGED = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(50)).decode()
VIDEO = base64.b64encode(b"\0\0\0\x18ftypisom" + bytes(50)).decode()
WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "a model that does not see": (
        "/v1/embeddings",
        {"model": TEXT_ONLY, "input": [{"content": [IMAGE_PART]}]},
        f'"{TEXT_ONLY}" does not support images',
    ),
    "a model that does not hear": (
        "/v1/embeddings",
        {"model": TEXT_ONLY, "messages": [{"role": "user", "content": [SOUND_PART]}]},
        f'"{TEXT_ONLY}" does not support audio',
    ),
    "in Ollama's form": (
        "/api/embed", {"model": TEXT_ONLY, "images": [IMAGE]}, "does not support images",
    ),
    "in Cohere's form": (
        "/v2/embed", {"model": TEXT_ONLY, "images": [URI]}, "does not support images",
    ),
    "a damaged image": (
        "/v1/embeddings",
        {"input": ["x", {"content": [{"type": "image_url", "image_url": {
            "url": f"data:image/png;base64,{DAMAGED}"}}]}]},
        "input[1].content[0]: ",
    ),
    "a sound that is none": (
        "/v1/embeddings",
        {"input": [{"content": [{"type": "input_audio", "input_audio": {"data": "AAAA"}}]}]},
        "input[0].content[0]: ",
    ),
    "too many": (
        "/v1/embeddings",
        {"input": [{"content": [IMAGE_PART] * 9}] * 2},
        "at most 16 images and sounds can be given, not 18",
    ),
    "an unknown part": (
        "/v1/embeddings", {"input": [{"content": [{"type": "file", "file": "x"}]}]},
        "input[0].content[0]: 'file' is not supported here",
    ),
    "messages and input": (
        "/v1/embeddings", {"input": "x", "messages": [{"role": "user", "content": "x"}]},
        "messages and input: give one of them",
    ),
    "images beside input": (
        "/v1/embeddings", {"input": "x", "images": [IMAGE]},
        'images is not supported here: give {"content": [parts]} in input, or messages',
    ),
    "images in Ollama's older form": (
        "/api/embeddings", {"prompt": "x", "images": [IMAGE]}, "the route embed takes images",
    ),
    "too long, and may be cut": (
        "/api/embed", {"images": [IMAGE] * 3, "options": {"num_ctx": 64}, "truncate": True},
        "ask for a longer context (num_ctx); images and sounds are never cut",
    ),
    "a content that is not in parts": (
        "/v1/embeddings", {"input": ["x", {"content": "hello"}]},
        'input[1] must be a text, tokens, both mixed, {"prompt_string": text} or '
        '{"content": [parts]}',
    ),
    "no parts": ("/v1/embeddings", {"input": {"content": []}}, '{"content": [parts]}'),
    "an unknown object": ("/v1/embeddings", {"input": {"contents": []}}, '{"content": [parts]}'),
    "a video that is none": (
        "/v1/embeddings",
        {"input": {"content": [{"type": "video_url", "video_url": {
            "url": "data:video/mp4;base64,AAAA"}}]}},
        "of videos: MP4, MOV, Matroska, WebM and AVI",
    ),
    "a video": (
        "/v1/embeddings",
        {"input": {"content": [{"type": "video_url", "video_url": {
            "url": f"data:video/mp4;base64,{VIDEO}"}}]}},
        "takes no videos",
    ),
    "no messages": ("/v1/embeddings", {"messages": []}, "messages is empty"),
    "a message without content": (
        "/v1/embeddings", {"messages": [{"role": "user"}]}, "messages[0].content is missing",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_embedded_is_named(server: Server, what: str) -> None:
    path, body, message = WRONG[what]
    response = httpx.post(f"{server.url}{path}", json={"model": MEDIA, **body}, timeout=300)
    assert response.status_code == 400, response.text
    assert message in response.text.replace('\\"', '"')


def test_show_says_the_width_of_vectors(embedders: Path) -> None:
    info = read_model_info(embedders / f"{MEDIA}.gguf")
    assert (info.embedding_length, info.embedding_length_out) == (128, 192)
    assert "    embedding length    192\n" in as_text(info, Modelfile())


def test_lists_of_models_say_what_it_takes(server: Server) -> None:
    shown = httpx.post(f"{server.url}/api/show", json={"model": MEDIA}, timeout=300).json()
    assert {"embedding", "vision", "audio"} <= {*shown["capabilities"]}
    props = httpx.get(f"{server.url}/props", params={"model": MEDIA}, timeout=300).json()
    assert props["modalities"] == {"vision": True, "audio": True}
