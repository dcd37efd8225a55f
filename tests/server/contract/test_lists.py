"""`GET /api/tags`, `/api/ps`, `/api/version`, and what these have in common.

Elsewhere: the order and the details of fake models (tests/server/ollama/test_ollama_lists.py).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import httpx
import pytest
from support.contract import JSON, Case, listed

from tampu.version import __version__

pytestmark = pytest.mark.server

DETAILS = {
    "parent_model", "format", "family", "families", "parameter_size", "quantization_level",
    "context_length", "embedding_length",
}  # fmt: skip
TAG = {"name", "model", "modified_at", "size", "digest", "details", "capabilities", "origin"}
PROCESS = {
    "name", "model", "size", "digest", "details", "expires_at", "size_vram", "context_length",
    "engine", "slots", "slot_size", "devices", "placement", "loading",
}  # fmt: skip


def is_hex(digest: Any) -> bool:
    return len(digest) == 64 and not set(digest) - set("0123456789abcdef")


def tags(holds: Callable[[Any], bool]) -> Case:
    """What holds of all models that there are."""
    return Case(
        "/api/tags", None, lambda a: a.kind == JSON and holds(a.json["models"]), method="GET"
    )


CASES = {
    "a version that can be compared": Case(
        "/api/version", None,
        lambda a: tuple(map(int, a.json["version"].split("."))) >= (0, 20)
        and a.json["tampu"] == __version__, method="GET",
    ),
    "a model has these": tags(lambda models: all(set(model) == TAG for model in models)),
    "details are these": tags(lambda models: all(set(m["details"]) == DETAILS for m in models)),
    "name and model are the same, short, with the tag": tags(
        lambda models: all(m["name"] == m["model"] for m in models)
        and {"talker:latest", "demo:latest"} <= {m["name"] for m in models}
    ),
    "a digest is 64 digits, and nothing else": tags(
        lambda models: all(is_hex(model["digest"]) for model in models)
    ),
    "the size is that of the files": tags(
        lambda models: all(model["size"] > 100_000 for model in models)
    ),
    "those that were changed last come first": tags(
        lambda models: [m["modified_at"] for m in models]
        == sorted((m["modified_at"] for m in models), reverse=True, key=datetime.fromisoformat)
    ),
    "what is damaged is not listed": tags(
        lambda models: "broken:latest" not in {model["name"] for model in models}
    ),
}  # fmt: skip


@listed(CASES)
def test_lists(client: httpx.Client, case: Case) -> None:
    case.check(client)


def test_loaded_models_are_listed_latest_expiry_first(client: httpx.Client) -> None:
    for name, keep_alive in (("talker", "10m"), ("thinker", -1), ("endless", "1h")):
        body = {"model": name, "keep_alive": keep_alive, "options": {"num_ctx": 128}}
        client.post("/api/generate", json=body).raise_for_status()
    models = client.get("/api/ps").json()["models"]
    assert [model["name"].partition(":")[0] for model in models[:3]] == [
        "thinker", "endless", "talker",
    ]  # fmt: skip
    for model in models[:3]:
        assert set(model) == PROCESS
        assert set(model["details"]) == DETAILS
        assert model["name"] == model["model"]
        assert is_hex(model["digest"])
        assert model["size"] >= model["size_vram"] == 0
        assert model["context_length"] == 128
        assert model["slots"] >= 1
        assert model["slot_size"] > 0
    left = datetime.fromisoformat(models[1]["expires_at"]).timestamp() - datetime.now().timestamp()
    assert 3500 < left <= 3600
    for name in ("thinker", "endless"):
        client.post("/api/generate", json={"model": name, "keep_alive": 0}).raise_for_status()
