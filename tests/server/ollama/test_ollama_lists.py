"""Lists, details, liveness."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import httpx
import pytest
from support.waiting import until

from tampu.version import __version__
from tests.server.conftest import Site


def get(site: Site, path: str) -> Any:
    return site.call(("GET", path, {}))[0]


def test_root_returns_the_text_that_clients_look_for(site: Site) -> None:
    got, head = site.call(("GET", "/", {}), ("HEAD", "/", {}))
    assert (got.text, got.headers["content-type"]) == (
        "Ollama is running",
        "text/plain; charset=utf-8",
    )
    assert (head.status_code, head.text) == (200, "")


def test_the_version_is_one_that_clients_can_compare(site: Site) -> None:
    got, head = site.call(("GET", "/api/version", {}), ("HEAD", "/api/version", {}))
    version = got.json()["version"]
    assert tuple(map(int, version.split("."))) >= (0, 20)
    assert got.json()["tampu"] == __version__
    assert head.status_code == 200


def test_the_models_are_listed_without_the_broken_one(site: Site) -> None:
    models = {model["name"]: model for model in get(site, "/api/tags").json()["models"]}
    assert set(models) >= {"m:latest", "base:latest", "thinker:latest", "embedder:latest"}
    assert "broken:latest" not in models
    model = models["m:latest"]
    assert model["model"] == "m:latest"
    assert len(bytes.fromhex(model["digest"])) == 32
    assert model["size"] > 1000
    assert model["origin"] == "file"
    assert datetime.fromisoformat(model["modified_at"]).tzinfo is not None
    assert model["details"] == {
        "parent_model": "",
        "format": "gguf",
        "family": "llama",
        "families": ["llama"],
        "parameter_size": "640",
        "quantization_level": "Q4_K_M",
        "context_length": 2048,
        "embedding_length": 64,
    }


@pytest.mark.parametrize("body", [{"model": "m"}, {"name": "M:latest"}])
def test_a_model_is_shown_in_detail(post: Callable[..., Any], body: dict[str, str]) -> None:
    shown = post("/api/show", **body).json()
    assert shown["capabilities"] == ["completion", "tools"]
    assert shown["license"] == "apache-2.0"
    assert "m.content" in shown["template"]
    assert shown["details"]["family"] == "llama"
    info = shown["model_info"]
    assert info["general.architecture"] == "llama"
    assert info["general.parameter_count"] == 640
    assert info["llama.context_length"] == 2048
    assert info["tokenizer.ggml.tokens"] is None
    assert "general.name" not in info
    assert "tokenizer.chat_template" not in info


def test_long_arrays_are_shown_if_verbose(post: Callable[..., Any]) -> None:
    shown = post("/api/show", model="m", verbose=True).json()
    assert shown["model_info"]["tokenizer.ggml.tokens"][:2] == ["t0", "t1"]


@pytest.mark.parametrize(
    ("name", "capabilities"),
    [("base", ["completion"]), ("thinker", ["completion", "thinking"]),
     ("embedder", ["embedding", "tools"])],
)  # fmt: skip
def test_capabilities_come_from_the_file(
    post: Callable[..., Any], name: str, capabilities: list[str]
) -> None:
    assert post("/api/show", model=name).json()["capabilities"] == capabilities


@pytest.mark.parametrize(
    ("body", "status"),
    [({}, 400), ({"model": ""}, 400), ({"model": "x"}, 404), ({"model": 1}, 400)],
)
def test_invalid_show_request_is_an_error(
    post: Callable[..., Any], body: dict[str, Any], status: int
) -> None:
    assert post("/api/show", **body).status_code == status


def test_loaded_model_is_listed_with_its_expiry(site: Site) -> None:
    ask = ("POST", "/api/generate", {"json": {"model": "m", "prompt": "x", "keep_alive": "10m"}})
    forever = (
        "POST",
        "/api/generate",
        {"json": {"model": "base", "prompt": "x", "keep_alive": -1}},
    )
    before_s = time.time()
    *_, response = site.call(ask, forever, ("GET", "/api/ps", {}))
    after_s = time.time()
    base, m = response.json()["models"]
    assert (base["name"], m["name"]) == ("base:latest", "m:latest")
    assert m["size"] == 1000
    assert m["size_vram"] == 0
    assert m["context_length"] == 1024
    ends_s = datetime.fromisoformat(m["expires_at"]).timestamp()
    assert before_s + 600 - 1e-3 <= ends_s <= after_s + 600 + 1e-3
    assert datetime.fromisoformat(base["expires_at"]).year > 2200


def test_loading_model_is_listed_with_known_fields(site: Site) -> None:

    async def test(client: httpx.AsyncClient) -> tuple[Any, Any]:
        site.start.go_on = asyncio.Event()
        body = {"model": "m", "keep_alive": "1h", "options": {"num_ctx": 256}}
        coming = asyncio.create_task(client.post("/api/generate", json=body))
        await until(lambda: site.start.begun, "the load begins")
        before_s = time.time()
        [model] = (await client.get("/api/ps")).json()["models"]
        assert model["loading"]
        after_s = time.time()
        ends_s = datetime.fromisoformat(model["expires_at"]).timestamp()
        assert before_s + 3600 - 1e-3 <= ends_s <= after_s + 3600 + 1e-3
        site.start.go_on.set()
        await coming
        [loaded] = (await client.get("/api/ps")).json()["models"]
        assert not loaded["loading"]
        return model, loaded

    model, loaded = site.run(test)
    assert set(model) == set(loaded)
    names = ("name", "digest", "details", "context_length", "engine")
    assert {name: model[name] for name in names} == {name: loaded[name] for name in names}
    assert (model["context_length"], model["size_vram"]) == (256, 0)


def test_tensors_are_shown_if_verbose(site: Site) -> None:
    short, whole = site.call(
        ("POST", "/api/show", {"json": {"model": "m"}}),
        ("POST", "/api/show", {"json": {"model": "m", "verbose": True}}),
    )
    assert "tensors" not in short.json()
    assert whole.json()["tensors"] == [
        {"name": "token_embd.weight", "type": "F16", "shape": [10, 64]}
    ]


def test_tensors_are_shown_with_their_sizes_and_no_arrays_if_requested(site: Site) -> None:
    short, told = site.call(
        ("POST", "/api/show", {"json": {"model": "m"}}),
        ("POST", "/api/show", {"json": {"model": "m", "tensors": True}}),
    )
    assert told.json() == short.json() | {"tensors": told.json()["tensors"]}
    assert [one["size"] for one in told.json()["tensors"]] == [1280]


@pytest.mark.parametrize("keep_alive", [1e308, 2**62, "2000000h", -1])
def test_keep_alive_beyond_the_calendar_is_accepted(site: Site, keep_alive: float | str) -> None:
    loaded, listed = site.call(
        ("POST", "/api/generate", {"json": {"model": "m", "keep_alive": keep_alive}}),
        ("GET", "/api/ps", {}),
    )
    assert loaded.status_code == 200
    [model] = listed.json()["models"]
    assert datetime.fromisoformat(model["expires_at"]).year > 2200
