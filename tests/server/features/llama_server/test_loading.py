"""`/models` as llama-server has it: which models are in memory, loading and unloading."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.server.conftest import Site


async def states(client: Any) -> dict[str, str]:
    listed = (await client.get("/models")).json()["data"]
    return {model["id"]: model["status"]["value"] for model in listed}


async def test_a_model_is_loaded_and_unloaded_by_name(site: Site) -> None:
    async with site.started() as client:
        assert set((await states(client)).values()) == {"unloaded"}
        loaded = await client.post("/models/load", json={"model": "m"})
        assert (loaded.status_code, loaded.json()) == (200, {"success": True})
        found = await states(client)
        assert [name for name, state in found.items() if state == "loaded"] == ["m:latest"]
        again = await client.post("/models/load", json={"model": "m"})
        assert again.json() == {"success": True}
        unloaded = await client.post("/models/unload", json={"model": "m"})
        assert (unloaded.status_code, unloaded.json()) == (200, {"success": True})
        assert set((await states(client)).values()) == {"unloaded"}
    assert len(site.start.runners) == 1


@pytest.mark.parametrize(
    ("path", "given", "status", "told"),
    [
        ("/models/load", {"model": "nothing"}, 404, "nothing"),
        ("/models/load", {}, 400, "model is required"),
        ("/models/load", {"model": 3}, 400, "model"),
        ("/models/unload", {"model": "m"}, 400, "is not in memory"),
        ("/models/unload", {"model": "nothing"}, 404, "nothing"),
        ("/models/unload", {}, 400, "model is required"),
    ],
)
def test_what_cannot_be_done_is_said(
    site: Site, path: str, given: dict[str, Any], status: int, told: str
) -> None:
    [answer] = site.call(("POST", path, {"json": given}))
    assert (answer.status_code, told in answer.json()["error"]["message"]) == (status, True)


def test_the_list_with_a_version_is_openais(site: Site) -> None:
    [answer] = site.call(("GET", "/v1/models", {}))
    assert all("status" not in model for model in answer.json()["data"])


async def test_a_client_may_ask_for_an_error_if_all_slots_are_busy(site: Site) -> None:
    async with site.started() as client:
        asked = "/slots?model=m&fail_on_no_slot=1"
        slots = (await client.get(asked)).json()
        assert {slot["is_processing"] for slot in slots} == {False}
        body = {"model": "m", "prompt": "wait"}
        running = [asyncio.create_task(client.post("/completion", json=body)) for _ in slots]
        while not all(s["is_processing"] for s in (await client.get("/slots?model=m")).json()):
            await asyncio.sleep(0)
        answer = await client.get(asked)
        assert (answer.status_code, answer.json()["error"]["type"]) == (503, "unavailable_error")
        assert (await client.get("/slots?model=m&fail_on_no_slot=0")).status_code == 200
        for task in running:
            task.cancel()
