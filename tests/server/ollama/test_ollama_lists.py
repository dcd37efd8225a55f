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

from tests.server.conftest import Site


def get(site: Site, path: str) -> Any:
    return site.call(("GET", path, {}))[0]


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
