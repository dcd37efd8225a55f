"""One bad file, or one bad part of a file, never hides or stops what does not need it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from support.serving import Server, start_server
from support.stores import add_model
from support.tiny_model import Tiny, write_tiny

from tampu.store import Store
from tampu.store.manifests import Media

pytestmark = pytest.mark.slow

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
BAD = "{% for m in messages %}\n{{ m.content | fromjson }}{% endfor %}"
NAMES = ("x%E8", "a%0Ab%1B[31m", " spaced (1)", "100%")
USER = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    models, home = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("home")
    good = write_tiny(models / "good.gguf", Tiny(), template=TEMPLATE)
    write_tiny(models / "bad.gguf", Tiny(), template=BAD)
    for name in (b"x\xe9", b"x\xe8", b"a\nb\x1b[31m", b"n" * 240, b" spaced (1)", b"100%"):
        os.link(good, os.fsencode(models) + b"/" + name + b".gguf")
    (models / os.fsdecode(b"broken\xe9.gguf")).write_bytes(b"GGUF and then nothing")
    (models / "folder.gguf").mkdir()
    (models / "dangling.gguf").symlink_to(models / "nowhere")
    (models / "loop.gguf").symlink_to(models / "loop.gguf")
    os.mkfifo(models / "pipe.gguf")
    theirs = Store(home / ".ollama/models")
    add_model(theirs, "other", model=good.read_bytes(), template=b"{{ .Prompt }}{{ nothing }}")
    os.mkfifo(theirs.layout.manifests / "registry.ollama.ai/library/other/pipe")
    (theirs.layout.manifests / "registry.ollama.ai/library/other/bad").write_bytes(b"{")
    odd = theirs.layout.manifests / "registry.ollama.ai/library" / os.fsdecode(b"y\xe9")
    odd.mkdir()
    (odd / "latest").write_bytes(b"{}")
    blind = add_model(theirs, "blind", model=good.read_bytes(), projector=b"eyes")
    [projector] = blind.manifest.of_kind(Media.PROJECTOR)
    theirs.blobs.path(projector.digest).unlink()
    studio = home / ".lmstudio/models/runa" / os.fsdecode(b"z\xe9")
    studio.mkdir(parents=True)
    os.link(good, studio / "m.gguf")
    os.link(good, studio.parent.parent / "loose.gguf")
    server = start_server(models, home, TAMPU_THREADS="1")
    yield server
    server.end()


def ask(server: Server, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
    if body is None:
        return httpx.get(server.url + path, timeout=60)
    return httpx.post(server.url + path, json=body, timeout=60)


@pytest.mark.parametrize("path", ["/api/tags", "/v1/models", "/models", "/v1/models?detail=1"])
def test_lists_have_every_model_whatever_its_name_and_whatever_lies_beside_it(
    server: Server, path: str
) -> None:
    found = ask(server, path)
    assert found.status_code == 200
    text = found.text
    for name in (
        "good",
        "bad",
        "x%E9",
        "x%E8",
        "a%0Ab%1B[31m",
        " spaced (1)",
        "100%",
        "other",
        "blind",
    ):
        assert f'"{name}' in text, name
    for name in ("broken", "folder", "dangling", "loop", "pipe"):
        assert name not in text


@pytest.mark.parametrize("name", ["x%E9", "x%E8:latest", "a%0Ab%1B[31m", "n" * 240, "100%"])
def test_a_model_with_an_odd_name_is_used_by_the_listed_one(server: Server, name: str) -> None:
    body = {"model": name, "prompt": "hi", "max_tokens": 2}
    assert ask(server, "/v1/completions", body).status_code == 200
    assert ask(server, "/api/show", {"model": name}).status_code == 200
    assert ask(server, "/api/ps").status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "hi", "max_tokens": 2}),
        ("/completion", {"prompt": "hi", "n_predict": 2}),
        ("/api/generate", {"prompt": "hi", "raw": True, "options": {"num_predict": 2}}),
        ("/api/embed", {"input": "hi"}),
        ("/v1/embeddings", {"input": "hi"}),
        ("/tokenize", {"content": "hi"}),
        ("/api/show", {}),
        ("/props?model=bad", None),
    ],
)
def test_a_template_that_does_not_compile_leaves_the_rest_of_the_model_usable(
    server: Server, path: str, body: dict[str, Any] | None
) -> None:
    answer = ask(server, path, None if body is None else {"model": "bad", **body})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("model", ["bad", "other"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": USER, "max_tokens": 2}),
        ("/v1/chat/completions", {"messages": USER, "max_tokens": 2, "stream": True}),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 2}),
        ("/v1/messages", {"messages": USER, "max_tokens": 2}),
        ("/v1/messages/count_tokens", {"messages": USER}),
        ("/api/chat", {"messages": USER}),
        ("/api/generate", {"prompt": "hi"}),
        ("/apply-template", {"messages": USER}),
    ],
)
def test_chats_are_refused_with_the_line_and_what_to_do(
    server: Server, model: str, path: str, body: dict[str, Any]
) -> None:
    answer = ask(server, path, {"model": model, **body})
    assert answer.status_code == 400, answer.text
    assert f"line {2 if model == 'bad' else 1}" in answer.text
    assert "TEMPLATE" in answer.text
    assert "damaged" not in answer.text


def test_a_missing_projector_hurts_images_only(server: Server) -> None:
    body = {"model": "blind", "max_tokens": 2, "messages": USER}
    assert ask(server, "/v1/chat/completions", body).status_code == 200
    assert "images are refused: blind:latest: its file sha256-" in server.log.read_text()
    shown = ask(server, "/api/show", {"model": "blind"}).json()
    assert "vision" not in shown["capabilities"]
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    body["messages"] = [{"role": "user", "content": [image]}]
    assert ask(server, "/v1/chat/completions", body).status_code == 400


def test_show_says_what_is_wrong_with_a_template(server: Server) -> None:
    shown = ask(server, "/api/show", {"model": "bad"}).json()
    assert shown["template"] == BAD
    assert shown["template_problem"] == "line 2: No filter named 'fromjson'"
    assert "template_problem" not in ask(server, "/api/show", {"model": "good"}).json()


def test_creating_with_a_template_mends_the_model(server: Server) -> None:
    body = {"model": "mended", "from": "bad", "template": TEMPLATE, "stream": False}
    assert ask(server, "/api/create", body).status_code == 200
    chat = {"model": "mended", "messages": USER, "max_tokens": 2}
    assert ask(server, "/v1/chat/completions", chat).status_code == 200
    lines = ask(server, "/api/create", {"model": "kept", "from": "bad"}).text
    assert "the chat template cannot be used, so chats are refused: line 2" in lines
