"""Responses that are kept: conversations go on from them, and each key sees its own."""

from __future__ import annotations

import asyncio
import os
import resource
import sqlite3
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.sse import named_of

from tampu.errors import RequestError
from tampu.server.feature_list import TABLES
from tampu.server.features.responses.store import KEPT_S, NoSuchResponseError, ResponseStore
from tampu.server.front.caller import Caller
from tampu.server.front.errors import BusyError
from tampu.server.front.keys import read_keys
from tampu.server.front.state import DATABASE, State
from tests.server.conftest import Site
from tests.server.features.responses.conftest import ALICE, BOB, site_of

PATH = "/v1/responses"


async def ask(client: Any, text: Any, status: int = 200, **more: Any) -> Any:
    response = await client.post(PATH, json={"model": "m", "input": text} | more)
    assert response.status_code == status, response.text
    return response.json()


def messages(site: Site) -> list[tuple[str, str]]:
    """Return the roles and texts of the last prompt."""
    prompt, _ = site.start.runners[-1][1].requests[-1]
    return [(message["role"], message["content"]) for message in prompt.messages]


async def test_a_conversation_goes_on_from_a_response(kept: Site) -> None:
    async with kept.started() as client:
        first = await ask(client, "one", instructions="be brief")
        assert (first["store"], first["previous_response_id"]) == (True, None)
        second = await ask(client, "two", previous_response_id=first["id"])
        assert second["previous_response_id"] == first["id"]
        assert messages(kept) == [("user", "one"), ("assistant", "one"), ("user", "two")]
        third = [{"role": "user", "content": [{"type": "input_text", "text": "three"}]}]
        await ask(client, third, previous_response_id=second["id"])
        said = ["one", "one", "two", "two", "three"]
        assert [text for _, text in messages(kept)] == said
        await ask(client, "other", previous_response_id=first["id"])  # another branch
        assert [text for _, text in messages(kept)] == ["one", "one", "other"]


def referring(*ids: str) -> list[dict[str, Any]]:
    return [{"type": "item_reference", "id": id} for id in ids]


async def test_items_of_earlier_responses_can_be_referred_to(kept: Site) -> None:
    async with kept.started() as client:
        first = await ask(client, [{"role": "user", "content": "one", "id": "u1"}])
        told = first["output"][0]["id"]
        question = [{"role": "user", "content": "two"}]
        second = await ask(client, [{"id": "u1"}, *referring(told), *question])
        assert messages(kept) == [("user", "one"), ("assistant", "one"), ("user", "two")]
        page = await client.get(f"{PATH}/{second['id']}/input_items?order=asc")
        assert [item["id"] for item in page.json()["data"]][:2] == ["u1", told]
        await client.delete(f"{PATH}/{first['id']}")  # the second response has the item too
        await ask(client, [*referring(told), *question], previous_response_id=second["id"])
        assert [text for _, text in messages(kept)] == ["one", "one", "two", "two", "one", "two"]
        counted = {"model": "m", "input": [*referring(told), *question]}
        assert (await client.post(f"{PATH}/input_tokens", json=counted)).status_code == 200


async def test_calls_and_reasoning_can_be_referred_to(kept: Site) -> None:
    call = {"type": "function_call", "id": "fc1", "call_id": "c1", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c1", "output": "5"}
    summary = [{"type": "summary_text", "text": "hm"}]
    reasoning = {"type": "reasoning", "id": "rs1", "summary": summary}

    async with kept.started() as client:
        await ask(client, [{"role": "user", "content": "one"}, reasoning, call, output])
        await ask(client, [*referring("rs1", "fc1"), output])
        prompt, _ = kept.start.runners[-1][1].requests[-1]
        [said, result] = prompt.messages
        assert said["reasoning_content"] == "hm"
        assert said["tool_calls"][0]["function"]["name"] == "f"
        assert (result["role"], result["content"]) == ("tool", "5")


async def test_a_reference_to_no_stored_item_is_an_error_that_names_it(kept: Site) -> None:
    async with kept.started() as client:
        unkept = await ask(client, "one", store=False)
        deleted = await ask(client, "two")
        await client.delete(f"{PATH}/{deleted['id']}")
        for id in ("msg_x", unkept["output"][0]["id"], deleted["output"][0]["id"]):
            answer = await ask(client, [{"role": "user", "content": "x"}, *referring(id)], 404)
            assert answer["error"]["message"].startswith("input[1]: ")
            assert f"Item with id '{id}' not found." in answer["error"]["message"]


async def test_a_streamed_response_is_kept_as_its_last_event_has_it(kept: Site) -> None:
    async with kept.started() as client:
        given = {"model": "m", "input": "one", "stream": True}
        *_, last = named_of(await client.post(PATH, json=given))
        response = last["response"]
        assert (await client.get(f"{PATH}/{response['id']}")).json() == response


async def test_a_response_is_returned_until_it_is_deleted(kept: Site) -> None:
    async with kept.started() as client:
        first = await ask(client, "one")
        second = await ask(client, "two", previous_response_id=first["id"])
        place = f"{PATH}/{first['id']}"
        assert (await client.get(place)).json() == first
        assert (await client.get(f"{place}?stream=true")).status_code == 400
        deleted = (await client.delete(place)).json()
        assert deleted == {"id": first["id"], "object": "response", "deleted": True}
        for method in ("GET", "DELETE"):
            assert (await client.request(method, place)).status_code == 404
        assert (await client.get(f"{place}/input_items")).status_code == 404
        answer = await ask(client, "three", 400, previous_response_id=second["id"])
        assert answer["error"]["param"] == "previous_response_id"
        assert first["id"] in answer["error"]["message"]


async def test_the_items_that_a_response_was_made_from_are_listed(kept: Site) -> None:
    async with kept.started() as client:
        first = await ask(client, "one")
        output = {"type": "function_call_output", "call_id": "c", "output": "3"}
        call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
        later = [call, output, {"role": "user", "content": "two"}]
        second = await ask(client, later, previous_response_id=first["id"])
        place = f"{PATH}/{second['id']}/input_items"
        found = (await client.get(f"{place}?order=asc")).json()
        ids = [item["id"] for item in found["data"]]
        assert [id.partition("_")[0] for id in ids] == ["msg", "msg", "fc", "fco", "msg"]
        assert found["data"][0]["content"] == [{"type": "input_text", "text": "one"}]
        assert found["data"][1] == first["output"][0]
        assert found["data"][3]["output"] == "3"
        assert (found["object"], found["has_more"]) == ("list", False)
        part = (await client.get(f"{place}?limit=2&after={ids[-1]}")).json()
        assert [item["id"] for item in part["data"]] == [ids[3], ids[2]]
        assert part["has_more"]
        assert (await client.get(f"{place}?after=none")).status_code == 400
        assert (await client.get(f"{place}?limit=101")).status_code == 400


async def test_what_is_not_to_be_kept_is_not(kept: Site) -> None:
    async with kept.started() as client:
        first = await ask(client, "one", store=False)
        assert first["store"] is False
        assert (await client.get(f"{PATH}/{first['id']}")).status_code == 404
        answer = await ask(client, "two", 400, previous_response_id=first["id"])
        assert "previous_response_id" in answer["error"]["message"]


def test_responses_are_there_after_a_restart(model_folder: Path, tmp_path: Path) -> None:
    first = site_of(model_folder, tmp_path).run(lambda client: ask(client, "one"))
    site = site_of(model_folder, tmp_path)
    site.run(lambda client: ask(client, "two", previous_response_id=first["id"]))
    assert [text for _, text in messages(site)] == ["one", "one", "two"]
    assert (tmp_path / DATABASE).stat().st_mode & 0o077 == 0


def test_a_key_sees_its_own_responses(model_folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "keys.toml"
    place.write_text('[alice]\nkey = "a"\n[bob]\nkey = "b"\n[admin]\nkey = "c"\nmanage = true\n')
    site = site_of(model_folder, tmp_path, keys=read_keys(place))

    async def test(client: Any) -> None:
        def headers(key: str) -> dict[str, str]:
            return {"authorization": f"Bearer {key}"}

        given: dict[str, Any] = {"model": "m", "input": "one"}
        id = (await client.post(PATH, json=given, headers=headers("a"))).json()["id"]
        for key, status in (("a", 200), ("b", 404), ("c", 200)):
            found = await client.get(f"{PATH}/{id}", headers=headers(key))
            assert found.status_code == status
        given["previous_response_id"] = id
        answer = await client.post(PATH, json=given, headers=headers("b"))
        assert answer.status_code == 400
        told = (await client.get(f"{PATH}/{id}", headers=headers("a"))).json()["output"][0]["id"]
        given = {"model": "m", "input": [{"role": "user", "content": "x"}, *referring(told)]}
        for key, status in (("a", 200), ("b", 404), ("c", 200)):
            answer = await client.post(PATH, json=given, headers=headers(key))
            assert answer.status_code == status
        assert (await client.delete(f"{PATH}/{id}", headers=headers("b"))).status_code == 404

    site.run(test)


async def test_a_server_that_keeps_none_says_so(model_folder: Path, tmp_path: Path) -> None:
    async with site_of(model_folder, tmp_path, max_responses_bytes=0).started() as client:
        first = await ask(client, "one", store=True)
        assert first["store"] is False
        answer = await ask(client, "two", 400, previous_response_id=first["id"])
        assert "MAX_RESPONSES_SIZE" in answer["error"]["message"]
        answer = await ask(client, referring(first["output"][0]["id"]), 400)
        assert "MAX_RESPONSES_SIZE" in answer["error"]["message"]
    assert not (tmp_path / DATABASE).exists()


def test_a_folder_that_another_server_uses_is_an_error_only_where_it_is_needed(
    model_folder: Path, tmp_path: Path
) -> None:
    async def test(client: Any) -> None:
        assert (await ask(client, "one"))["store"] is False
        await ask(client, "one", 503, store=True)

    async def beside() -> None:
        state = State(tmp_path, TABLES)
        await state.run(lambda _: None)
        try:
            await asyncio.to_thread(site_of(model_folder, tmp_path).run, test)
        finally:
            await state.close()

    asyncio.run(beside())


class Kept:
    """A store with a clock of its own."""

    def __init__(self, folder: Path, max_bytes: int = 10**6) -> None:
        self.state = State(folder, TABLES)
        self.now = 1000.0
        self.store = ResponseStore(self.state, max_bytes, lambda: self.now)

    async def add(self, id: str, text: str = "x", previous: str | None = None) -> bool:
        output = [{"type": "message", "id": f"m{id}", "content": text}]
        return await self.store.add(
            ALICE,
            [{"id": f"i{id}"}],
            {"id": id, "output": output, "previous_response_id": previous},
        )

    async def has(self, id: str) -> bool:
        try:
            await self.store.get(ALICE, id)
        except NoSuchResponseError:
            return False
        return True


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


async def test_what_was_not_used_for_longest_goes_first(folder: Path) -> None:
    kept = Kept(folder, max_bytes=1300)
    for id in "abc":
        await kept.add(id, "x" * 200)
        kept.now += 1
    await kept.add("d", "x" * 100, previous="a")
    assert [item["id"] for item in await kept.store.conversation(ALICE, "d")] == [
        "ia", "ma", "id", "md",
    ]  # fmt: skip
    await kept.add("e", "x" * 200)
    assert [await kept.has(id) for id in "abcde"] == [True, False, True, True, True]
    assert not await kept.add("f", "x" * 2000)  # more than may be kept
    assert not await kept.has("f")
    await kept.state.close()


async def test_a_response_is_kept_for_thirty_days_after_its_last_use(folder: Path) -> None:
    kept = Kept(folder)
    await kept.add("a")
    await kept.add("b")
    kept.now += KEPT_S - 1
    await kept.store.conversation(ALICE, "b")
    kept.now += 1
    assert [await kept.has(id) for id in "ab"] == [False, True]
    await kept.state.close()


async def test_rows_of_batches_are_kept_only_if_they_say_so(folder: Path) -> None:
    kept = Kept(folder)
    row = Caller(is_row=True)
    found = [await kept.store.keeps(row, wanted=wanted) for wanted in (None, True, False)]
    assert found == [False, True, False]
    await kept.state.close()


async def test_a_conversation_of_another_key_is_not_gone_on_from(folder: Path) -> None:
    kept = Kept(folder)
    await kept.add("a")
    with pytest.raises(RequestError, match="previous_response_id: response 'a' not found"):
        await kept.store.conversation(BOB, "a")
    await kept.state.close()


async def test_the_file_of_an_older_version_gets_the_table(folder: Path) -> None:
    kept = Kept(folder)
    await kept.add("a")
    assert await kept.has("a")
    await kept.state.close()
    with sqlite3.connect(folder / DATABASE) as db:
        db.executescript(
            "DROP TABLE response_items; DROP TABLE responses;"
            "DROP TABLE items; DROP TABLE conversations;"
            "PRAGMA user_version = 1;"
        )
    db.close()
    await kept.add("b")
    assert [await kept.has(id) for id in "ab"] == [False, True]
    await kept.state.close()


async def test_items_of_responses_that_an_older_version_kept_can_be_referred_to(
    folder: Path,
) -> None:
    kept = Kept(folder)
    await kept.add("a")
    await kept.state.close()
    with sqlite3.connect(folder / DATABASE) as db:
        db.executescript(
            "DROP TABLE response_items; DROP INDEX items_by_id; DROP TRIGGER response_deleted;"
            "PRAGMA user_version = 3;"
        )
    db.close()
    assert await kept.store.find_items(ALICE, {"ia", "ma", "x"}) == {
        "ia": {"id": "ia"}, "ma": {"type": "message", "id": "ma", "content": "x"},
    }  # fmt: skip
    await kept.store.delete(ALICE, "a")
    assert await kept.state.run(_count_of_item_ids) == 0
    await kept.state.close()


def _count_of_item_ids(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT COUNT(*) FROM response_items").fetchone()[0])


async def test_a_damaged_state_is_an_error_only_where_it_is_needed(
    model_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / DATABASE).write_bytes(b"no database" * 500)

    async with site_of(model_folder, tmp_path).started() as client:
        assert (await ask(client, "one"))["store"] is False
        answer = await ask(client, "one", 500, store=True)
        assert "cannot be used" in answer["error"]["message"]


def full(_: Any) -> Any:
    return os.statvfs_result((4096, 4096, 10**6, 0, 0, 0, 0, 0, 0, 255))


async def test_on_a_full_disk_nothing_is_promised(
    kept: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with kept.started() as client:
        first = await ask(client, "one")
        monkeypatch.setattr("os.statvfs", full)
        for stream in (False, True):
            answer = await ask(client, "two", 507, store=True, stream=stream)
            assert "the disk is full" in answer["error"]["message"]
        assert (await ask(client, "two"))["store"] is False
        assert (await ask(client, "two", previous_response_id=first["id"]))["store"] is False


@pytest.mark.parametrize("stream", [False, True])
async def test_a_disk_that_becomes_full_during_an_answer_is_told_at_its_end(
    kept: Site, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    async with kept.started() as client:
        assert (await ask(client, "one", store=True))["store"] is True
        # As many bytes as the file system would take: writing one more fails as on a full disk.
        [database] = kept.folder_of_state.glob(DATABASE)
        most = database.with_name(f"{DATABASE}-wal").stat().st_size
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
        try:
            given = {"model": "m", "input": "x" * 100_000, "store": True, "stream": stream}
            response = await client.post(PATH, json=given)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        found = named_of(response)[-1]["response"] if stream else response.json()
        assert found["status"] == "completed"
        assert found["store"] is False
        assert (await client.get(f"{PATH}/{found['id']}")).status_code == 404
        assert (await ask(client, "two", store=True))["store"] is True
    assert "response not kept" in caplog.text


async def test_memory_does_not_grow_with_what_is_kept(folder: Path) -> None:
    kept, process = Kept(folder, max_bytes=10**9), psutil.Process()
    for number in range(40):
        await kept.add(f"a{number}", "x" * 2000)
    assert await kept.has("a0")  # what was added before is written
    before = process.memory_info().rss
    for number in range(1600):
        await kept.add(f"b{number}", "x" * 2000)
        if number % 50 == 0:
            assert await kept.has("a0")
    assert await kept.has("b1599")
    assert process.memory_info().rss - before < 1 << 20
    await kept.state.close()


async def test_a_busy_state_is_an_error_where_it_is_wanted(folder: Path) -> None:
    first, second = Kept(folder), Kept(folder)
    assert await first.store.keeps(ALICE, wanted=None)
    assert not await second.store.keeps(ALICE, wanted=None)
    with pytest.raises(BusyError):
        await second.store.keeps(ALICE, wanted=True)
    await first.state.close()
    await second.state.close()
