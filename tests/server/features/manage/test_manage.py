"""Which models there are, and how that is changed: blobs, copies, deletions, transfers."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.fake_runner import FakeStart
from support.tiny_gguf import write_gguf

from tampu.engine.load_options import LoadOptions
from tampu.server.features.manage.threadpool import IterationPool
from tampu.server.options import ServerOptions
from tampu.store.catalog import Catalog
from tampu.store.manifests import CONFIG_TYPE, Descriptor, Manifest, Media
from tampu.store.names import ModelName
from tests.server.conftest import Site

PARAMETERS = {"temperature": 0.25, "stop": ["END"]}
SAID = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Yes?"}]


@pytest.fixture
def own_site(tmp_path: Path) -> Site:
    return Site(tmp_path, FakeStart(), ServerOptions(model=LoadOptions(context=1024)))


@pytest.fixture
def made(own_site: Site, model_folder: Path) -> Site:
    """A model `made` in the store of `own_site`, with parameters, a system message and messages."""
    store = Catalog(own_site.folder).library.store
    layers = {
        Media.MODEL: (model_folder / "m.gguf").read_bytes(),
        Media.PARAMS: json.dumps(PARAMETERS).encode(),
        Media.SYSTEM: b"Be brief.",
        Media.MESSAGES: json.dumps(SAID).encode(),
    }
    with store.lease() as lease:
        config = store.blobs.put(b"{}", lease)
        described = [
            Descriptor(media_type=kind, digest=store.blobs.put(content, lease), size=len(content))
            for kind, content in layers.items()
        ]
        store.write(
            ModelName.parse("made"),
            Manifest(config=Descriptor(CONFIG_TYPE, config, 2), layers=described),
        )
    return own_site


def digest_of(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def test_blob_is_refused_if_the_disk_is_full(own_site: Site) -> None:
    path = f"/api/blobs/{digest_of(b'x')}"
    body = {"content": b"x", "headers": {"content-length": str(2**60)}}
    [huge] = own_site.call(("POST", path, body))
    assert huge.status_code == 507
    assert "no space left" in huge.json()["error"]


def test_a_file_and_the_built_in_model_get_a_second_name(made: Site) -> None:
    write_gguf(made.folder / "loose.gguf")
    responses = made.call(
        ("POST", "/api/copy", {"json": {"source": "loose", "destination": "alias"}}),
        ("POST", "/api/copy", {"json": {"source": "demo", "destination": "other"}}),
        ("POST", "/api/show", {"json": {"model": "alias"}}),
        ("POST", "/api/generate", {"json": {"model": "other", "prompt": "x", "stream": False}}),
    )
    assert [response.status_code for response in responses] == [200] * 4


def test_a_model_that_is_not_in_the_own_store_cannot_be_deleted(made: Site) -> None:
    [deleted] = made.call(("DELETE", "/api/delete", {"content": b'{"model": "demo"}'}))
    assert deleted.status_code == 404
    assert (
        "demo:latest is not in tampu's own store (built in), so it is read-only"
        in (deleted.json()["error"])
    )


async def test_deleted_model_is_unloaded(made: Site) -> None:
    async with made.started() as client:
        await client.post("/api/generate", json={"model": "made"})
        assert len((await client.get("/api/ps")).json()["models"]) == 1
        await client.request("DELETE", "/api/delete", content=b'{"model": "made"}')
        assert (await client.get("/api/ps")).json() == {"models": []}


async def test_tokens_of_a_new_model_do_not_load_it_in_place_of_the_one_of_its_name(
    made: Site,
) -> None:
    async with made.started() as client:
        await client.post("/api/generate", json={"model": "made"})
        [before] = (await client.get("/api/ps")).json()["models"]
        new = {"model": "made", "from": "made", "system": "Be long.", "stream": False}
        (await client.post("/api/create", json=new)).raise_for_status()
        asked = {"model": "made", "text": "x"}
        (await client.post("/api/tokenize", json=asked)).raise_for_status()
        [after] = (await client.get("/api/ps")).json()["models"]
        [installed] = (await client.get("/api/tags")).json()["models"][:1]
        assert (installed["name"], installed["origin"]) == ("made:latest", "store")
        assert before["digest"] == after["digest"] != installed["digest"]


def test_model_defaults_apply_unless_the_request_overrides_them(made: Site) -> None:
    question = {"role": "user", "content": "x"}
    made.call(
        ("POST", "/api/chat", {"json": {"model": "made", "messages": [question]}}),
        ("POST", "/api/chat", {"json": {
            "model": "made", "options": {"temperature": 1.5},
            "messages": [{"role": "system", "content": "Be long."}, question],
        }}),
        ("POST", "/v1/chat/completions", {"json": {"model": "made", "messages": [question]}}),
        ("POST", "/v1/messages", {
            "json": {"model": "made", "messages": [question], "max_tokens": 5}
        }),
    )  # fmt: skip
    asked = made.start.runners[0][1].requests
    own = ({"role": "system", "content": "Be brief."}, *SAID)
    assert [prompt.messages for prompt, _ in asked] == [
        (*own, question),
        (*SAID, {"role": "system", "content": "Be long."}, question),
        (*own, question),
        (*own, question),
    ]
    assert [options.temperature for _, options in asked] == [0.25, 1.5, 0.25, 0.25]
    assert all(options.stop == ("END",) for _, options in asked)


async def test_abandoned_iterator_is_closed_after_its_current_step() -> None:
    closed = threading.Event()

    def slow() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.set()

    pool = IterationPool()
    steps = pool.iterate_in_threadpool(slow)
    assert await anext(steps) == 1
    await steps.aclose()
    await pool.close()
    assert closed.is_set()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/pull", {"model": "evil.example.org/team/model", "insecure": True}),
        ("/api/pull", {"model": "10.0.0.1:5000/team/model", "insecure": True}),
        ("/api/push", {"model": "evil.example.org/team/model"}),
        ("/api/create", {"model": "mine", "from": "evil.example.org/team/model"}),
    ],
)
def test_remote_clients_may_only_name_configured_registries(
    own_site: Site, path: str, body: dict[str, Any]
) -> None:
    own_site.transport = httpx.ASGITransport(own_site.app, client=("192.0.2.7", 40_000))
    [response] = own_site.call(("POST", path, {"json": {**body, "stream": False}}))
    assert response.status_code == 403
    assert "only clients on the server's machine may name the registry" in response.text


def test_default_registry_is_allowed_for_all_clients(own_site: Site) -> None:
    own_site.transport = httpx.ASGITransport(own_site.app, client=("192.0.2.7", 40_000))
    body = {"model": "nothing", "insecure": True, "stream": False}
    [response] = own_site.call(("POST", "/api/pull", {"json": body}))
    assert response.status_code == 502  # it was asked; nothing listens there


def test_a_name_is_checked_before_files_are_sent(made: Site) -> None:
    def check(name: str) -> Any:
        [response] = made.call(("POST", "/api/create/check", {"json": {"model": name}}))
        assert response.status_code == 200
        return response.json()

    there = {"valid": True, "name": "Made:latest", "exists": True, "origin": "store"}
    assert check("Made") == there
    assert check("other:8b") == {"valid": True, "name": "other:8b", "exists": False}
    for name, why in (("a b", "spaces"), ("a/b/c/d/e", "too many parts"), ("a:", "tag is empty")):
        told = check(name)
        assert told["valid"] is False
        assert why in told["error"]
