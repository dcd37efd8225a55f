"""`POST /api/create`: models made of blobs, and of other models."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from support.fake_runner import FakeStart, lines_of

from tampu.engine.load_options import LoadOptions
from tampu.server.options import ServerOptions
from tests.server.conftest import Site


@pytest.fixture
def own_site(tmp_path: Path) -> Site:
    return Site(tmp_path, FakeStart(), ServerOptions(model=LoadOptions(context=1024)))


def digest_of(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def test_model_is_created_from_a_blob_and_from_another_model(
    own_site: Site, model_folder: Path
) -> None:
    content = (model_folder / "m.gguf").read_bytes()
    digest = digest_of(content)
    first = {"model": "first", "files": {"m.gguf": digest}, "parameters": {"top_k": 7}}
    second = {"model": "second", "from": "first", "system": "Be kind.", "stream": False}
    sent, made, again, shown = own_site.call(
        ("POST", f"/api/blobs/{digest}", {"content": content}),
        ("POST", "/api/create", {"json": first}),
        ("POST", "/api/create", {"json": second}),
        ("POST", "/api/show", {"json": {"model": "second"}}),
    )
    assert sent.status_code == 201
    assert lines_of(made)[-1] == {"status": "success"}
    assert again.json() == {"status": "success"}
    assert shown.json()["system"] == "Be kind."
    assert "top_k" in shown.json()["parameters"]
    assert "Be kind." in shown.json()["modelfile"]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({}, "model is required"), ({"model": "x"}, "has no source"),
        ({"model": "../x", "from": "m"}, ""),
        ({"model": "x", "files": {"../m.gguf": digest_of(b"")}}, ""),
        ({"model": "x", "files": {"m.gguf": "sha256:1"}}, "SHA-256"),
        ({"model": "x", "from": "m", "parameters": {"top_k": "much"}}, "top_k"),
        ({"model": "x", "from": "m", "modelfile": "FROM m"}, "modelfile is not supported"),
    ],
)  # fmt: skip
def test_invalid_source_of_a_model_is_refused(
    own_site: Site, body: dict[str, Any], told: str
) -> None:
    [response] = own_site.call(("POST", "/api/create", {"json": body | {"stream": False}}))
    assert response.status_code == 400, response.text
    assert told in response.json()["error"]


def test_model_is_loaded_with_its_own_template(own_site: Site, model_folder: Path) -> None:
    content = (model_folder / "m.gguf").read_bytes()
    digest = digest_of(content)
    template = "{{ range .Messages }}{{ .Role }}: {{ .Content }}{{ end }}"
    created = {"model": "own", "files": {"m.gguf": digest}, "template": template, "stream": False}
    *_, shown, answered = own_site.call(
        ("POST", f"/api/blobs/{digest}", {"content": content}),
        ("POST", "/api/create", {"json": created}),
        ("POST", "/api/show", {"json": {"model": "own"}}),
        ("POST", "/api/generate", {"json": {"model": "own", "prompt": "x", "stream": False}}),
    )
    assert shown.json()["template"] == template
    assert answered.status_code == 200
    assert own_site.start.runners[0][1].options.template == template
