"""Whether a model is in memory, as llama-server's `GET /props` says it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
from support import virtual_time
from support.fake_runner import FakeStart
from support.virtual_time import pass_time

from tampu.engine.load_options import LoadOptions
from tampu.server.options import ServerOptions
from tests.server.conftest import Site

COUNTS: dict[str, dict[str, Any]] = {
    "/tokenize": {"content": "x"},
    "/chat/completions/input_tokens": {"messages": [{"role": "user", "content": "x"}]},
    "/v1/responses/input_tokens": {"input": "x"},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "x"}]},
}


async def is_sleeping(client: httpx.AsyncClient) -> bool:
    found: bool = (await client.get("/props", params={"model": "base"})).json()["is_sleeping"]
    return found


def served(folder: Path, keep_alive_s: float) -> Site:
    options = ServerOptions(keep_alive_s=keep_alive_s, model=LoadOptions(context=1024))
    return Site(folder, FakeStart(), options)


def test_a_model_wakes_for_tokens_and_sleeps_after_its_keep_alive(model_folder: Path) -> None:
    site = served(model_folder, 10)

    async def test(client: httpx.AsyncClient) -> None:
        for path, body in COUNTS.items():
            for _ in range(2):  # the question itself does not wake it
                assert await is_sleeping(client)
            (await client.post(path, json={"model": "base", **body})).raise_for_status()
            assert not await is_sleeping(client)
            await pass_time(9)
            assert not await is_sleeping(client)
            await pass_time(2)
        assert await is_sleeping(client)

    virtual_time.run(site._run(test))


def test_a_vocabulary_stays_for_a_minute_at_most(model_folder: Path) -> None:
    for keep_alive_s in (0, 300, float("inf")):
        site = served(model_folder, keep_alive_s)

        async def test(client: httpx.AsyncClient) -> None:
            await client.post("/tokenize", json={"model": "base", "content": "x"})
            await pass_time(59)
            assert not await is_sleeping(client)
            await pass_time(2)
            assert await is_sleeping(client)

        virtual_time.run(site._run(test))


def test_what_a_template_shows_is_found_without_the_model(site: Site) -> None:
    asked = ("GET", "/props", {"params": {"model": "thinker"}})
    for answer in site.call(asked, asked):
        found = answer.json()
        assert found["is_sleeping"] is True
        shown = {name for name, value in found["chat_template_caps"].items() if value}
        assert shown == {"supports_string_content", "supports_system_role"}
    assert site.start.begun == 0
