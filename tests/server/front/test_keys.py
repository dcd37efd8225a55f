"""Keys with limits, over fake models: what each API family answers, and what is counted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.batches import Batches, line
from support.fake_runner import FakeStart

from tampu.engine.load_options import LoadOptions
from tampu.errors import SettingsError
from tampu.server.front.keys import read_keys
from tampu.server.options import ServerOptions
from tests.server.conftest import Site

FILE = """
[slow]
key = "slow-key"
requests_per_minute = 2

[poor]
key = "poor-key"
tokens_per_day = 7

[picky]
key = "picky-key"
models = ["think*", "embedder"]
priority = "batch"

[boss]
key = "boss-key"
manage = true
"""
FAMILIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
    "/v1/messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5},
    "/api/chat": {"messages": [{"role": "user", "content": "x"}], "stream": False},
    "/completion": {"prompt": "x"},
}


def bearer(name: str) -> dict[str, Any]:
    return {"headers": {"authorization": f"Bearer {name}-key"}}


def chat(name: str, model: str = "m", path: str = "/v1/chat/completions") -> Any:
    return "POST", path, bearer(name) | {"json": {"model": model} | FAMILIES[path]}


def options(folder: Path) -> ServerOptions:
    place = folder / "keys.toml"
    place.write_text(FILE)
    return ServerOptions(
        model=LoadOptions(context=1024), state=folder / "state", keys=read_keys(place)
    )


@pytest.fixture
def site(model_folder: Path, tmp_path: Path) -> Site:
    return Site(model_folder, FakeStart(), options(tmp_path))


@pytest.mark.parametrize(
    ("path", "error"),
    [
        (
            "/v1/chat/completions",
            {"type": "rate_limit_error", "code": "rate_limit_exceeded", "param": None},
        ),
        ("/v1/messages", {"type": "rate_limit_error"}),
        ("/completion", {"type": "rate_limit_error", "code": 429}),
    ],
)
def test_a_key_over_its_rate_gets_429_in_the_form_of_the_api(
    site: Site, path: str, error: dict[str, Any]
) -> None:
    *let_in, refused = site.call(*[chat("slow", path=path) for _ in range(3)])
    assert [answer.status_code for answer in let_in] == [200, 200]
    assert refused.status_code == 429
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    message = "this API key allows 2 requests per minute"
    assert refused.json()["error"] == error | {"message": message}


def test_a_key_over_its_rate_gets_429_in_ollamas_form(site: Site) -> None:
    *_, refused = site.call(*[chat("slow", path="/api/chat") for _ in range(3)])
    assert (refused.status_code, refused.json()) == (
        429,
        {"error": "this API key allows 2 requests per minute"},
    )
    assert refused.headers["retry-after"]


def test_what_is_only_read_does_not_count(site: Site) -> None:
    many = [("GET", "/v1/models", bearer("slow"))] * 9
    assert {answer.status_code for answer in site.call(*many, chat("slow"))} == {200}


def test_a_key_without_tokens_left_is_refused_until_the_next_day(
    site: Site, model_folder: Path, tmp_path: Path
) -> None:
    answers = site.call(*[chat("poor") for _ in range(3)], chat("slow"))
    assert [answer.status_code for answer in answers] == [200, 200, 429, 200]  # 5 tokens each
    assert "7 tokens of today" in answers[2].json()["error"]["message"]
    assert 0 < int(answers[2].headers["retry-after"]) <= 86_400
    again = Site(model_folder, FakeStart(), options(tmp_path))
    assert again.call(chat("poor"))[0].status_code == 429  # also after a restart


def test_a_key_uses_only_its_models(site: Site) -> None:
    refused, allowed = site.call(chat("picky"), chat("picky", "thinker"))
    assert refused.status_code == 403
    assert "'m'" in refused.json()["error"]["message"]
    assert allowed.status_code == 200
    for path in FAMILIES:
        assert site.call(chat("picky", path=path))[0].status_code == 403
    [(_, runner)] = site.start.runners
    assert {given.priority for _, given in runner.requests} == {"batch"}


def test_usage_is_told_by_key_and_day_and_in_metrics(site: Site) -> None:
    calls = [chat("slow"), chat("poor"), chat("poor")]
    usage = ("GET", "/v1/usage?days=2", bearer("poor"))
    *_, own, all_, metrics = site.call(
        *calls, usage, ("GET", "/v1/usage", bearer("boss")), ("GET", "/metrics", bearer("boss"))
    )
    [row] = own.json()["data"]
    assert row.pop("day")
    assert row == {
        "key": "poor", "model": "m", "requests": 2, "prompt_tokens": 6, "cached_tokens": 2,
        "generated_tokens": 4,
    }  # fmt: skip
    assert own.json()["key"] == "poor"
    assert own.json()["limits"]["tokens_left"] == 0
    assert {row["key"]: row["requests"] for row in all_.json()["data"]} == {"slow": 1, "poor": 2}
    assert 'tampu_key_tokens_total{key="poor",kind="generated"} 4.0' in metrics.text
    assert 'tampu_key_requests_total{key="slow"} 1.0' in metrics.text
    for answer in (own, all_, metrics):
        assert "-key" not in answer.text.replace("use-api-key", "")
    for days in ("0", "x", "1000"):
        [bad] = site.call(("GET", f"/v1/usage?days={days}", bearer("boss")))
        assert bad.status_code == 400


async def test_keys_do_not_see_each_others_files_and_batches(site: Site) -> None:
    async with site.started() as client:
        own, other, boss = (
            Batches(client, **bearer(n)["headers"]) for n in ("poor", "slow", "boss")
        )
        id = await own.begin([line("a")])
        batch = await own.ended(id)
        file = batch["output_file_id"]
        for path in (f"/v1/batches/{id}", f"/v1/files/{file}", f"/v1/files/{file}/content"):
            assert (await client.get(path, headers=other.headers)).status_code == 404
            assert (await client.get(path, headers=boss.headers)).status_code == 200
        assert (await client.delete(f"/v1/files/{file}", headers=other.headers)).status_code == 404
        for path in ("/v1/files", "/v1/batches"):
            assert (await client.get(path, headers=other.headers)).json()["data"] == []
            assert (await client.get(path, headers=boss.headers)).json()["data"]
        usage = (await client.get("/v1/usage", headers=own.headers)).json()
        assert [row["requests"] for row in usage["data"]] == [1]  # a row counts as its owner's


async def test_a_batch_waits_while_its_key_has_no_tokens_left(site: Site) -> None:
    async with site.started() as client:
        batches = Batches(client, **bearer("poor")["headers"])
        id = await batches.begin([line(f"{n}") for n in range(20)])
        while (found := await batches.get(id))["request_counts"]["completed"] < 2:
            pass
        assert found["status"] == "in_progress"
        await client.post(f"/v1/batches/{id}/cancel", headers=bearer("boss")["headers"])
        ended = await batches.ended(id)
        assert ended["status"] == "cancelled"
        assert 2 <= ended["request_counts"]["completed"] < 20


def test_other_keys_work_beside_the_file(model_folder: Path, tmp_path: Path) -> None:
    both = replace(options(tmp_path), use_api_keys=("plain-key",))
    site = Site(model_folder, FakeStart(), both)
    assert {a.status_code for a in site.call(chat("plain"), chat("slow"))} == {200}
    assert site.call(chat("nobody"))[0].status_code == 401


def test_without_keys_usage_is_empty(model_folder: Path) -> None:
    site = Site(model_folder, FakeStart(), ServerOptions(model=LoadOptions(context=1024)))
    [_, usage] = site.call(
        (
            "POST",
            "/v1/chat/completions",
            {"json": {"model": "m", **FAMILIES["/v1/chat/completions"]}},
        ),
        ("GET", "/v1/usage", {}),
    )
    assert usage.json()["data"] == []
    assert usage.json()["key"] is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no keys"), ("x = 1", "x"), ("[a]\n", "key"), ('[a]\nkey = ""', "key"),
        ('[a]\nkey = "x"\nrequests_per_minute = 0', "requests_per_minute"),
        ('[a]\nkey = "x"\ntokens_per_day = "many"', "tokens_per_day"),
        ('[a]\nkey = "x"\nrequests = 1', "requests"),
        ('[a]\nkey = "x"\npriority = "high"', "priority"),
        ('["a b"]\nkey = "x"', "name"),
        ('[a]\nkey = "geheim"\n[b]\nkey = "geheim"', "same key"),
        ("[a", "TOML"),
    ],
)  # fmt: skip
def test_a_wrong_file_of_keys_is_an_error_at_the_start(
    tmp_path: Path, text: str, told: str
) -> None:
    (tmp_path / "keys.toml").write_text(text)
    with pytest.raises(SettingsError, match=told) as error:
        read_keys(tmp_path / "keys.toml")
    assert "keys.toml" in str(error.value)
    assert "geheim" not in json.dumps(str(error.value))
