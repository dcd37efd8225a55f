"""Conversations of OpenAI's API: what they refuse, whose they are, and how many are kept."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tampu.errors import RequestError
from tampu.server.feature_list import TABLES
from tampu.server.features.responses.conversation_store import (
    ConversationStore,
    NoSuchConversationError,
)
from tampu.server.front.caller import Caller
from tampu.server.front.state import DATABASE, State
from tests.server.conftest import Site
from tests.server.features.responses.conftest import ALICE, BOB, site_of

PATH = "/v1/conversations"


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": text} | more


async def asked(client: Any, path: str, status: int = 200, **body: Any) -> Any:
    response = await client.post(path, json=body)
    assert response.status_code == status, response.text
    return response.json()


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({"items": [said("x")] * 21}, "items: at most 20 at once, not 21"),
        ({"items": [{"role": "user"}]}, "items[0] must have a role, and a content"),
        ({"items": [said("x"), {"type": "computer_call"}]}, "items[1]"),
        ({"items": [{"type": "item_reference", "id": 5}]}, "items[0]: item_reference needs an id"),
        ({"items": [said("x", id=5)]}, "items[0].id must be a text"),
        ({"items": [said("x", id="a"), said("y", id="a")]}, "items: 'a' is there already"),
        ({"metadata": {f"{n}": "" for n in range(17)}}, "metadata may have 16 names"),
        ({"metadata": {"a": 1}}, "metadata"),
    ],
)
async def test_what_is_wrong_is_named_and_nothing_is_kept(
    kept: Site, body: dict[str, Any], where: str
) -> None:
    async with kept.started() as client:
        answer = await asked(client, PATH, 400, **body)
        assert where in answer["error"]["message"]
        await asked(client, PATH)  # the database is made at the latest now
    with sqlite3.connect(kept.folder_of_state / DATABASE) as db:
        assert db.execute("SELECT COUNT(*) FROM conversations").fetchone() == (1,)
        assert db.execute("SELECT COUNT(*) FROM items").fetchone() == (0,)
    db.close()


async def test_a_response_names_one_conversation_that_is_there(kept: Site) -> None:
    async with kept.started() as client:
        id = (await asked(client, PATH))["id"]
        first = await asked(client, "/v1/responses", model="m", input="one", conversation=id)
        both = {"previous_response_id": first["id"], "conversation": id}
        answer = await asked(client, "/v1/responses", 400, model="m", input="two", **both)
        assert answer["error"]["param"] == "previous_response_id"
        await asked(client, "/v1/responses", 404, model="m", input="two", conversation="conv_x")
        wrong: Any
        for wrong in (5, {"x": 1}, []):
            await asked(client, "/v1/responses", 400, model="m", input="x", conversation=wrong)
        found = (await client.get(f"{PATH}/{id}/items?order=asc")).json()["data"]
        assert [item["role"] for item in found] == ["user", "assistant"]


async def test_items_of_other_conversations_and_of_responses_can_be_referred_to(kept: Site) -> None:
    async with kept.started() as client:
        response = await asked(client, "/v1/responses", model="m", input="one")
        told = response["output"][0]["id"]
        first = await asked(client, PATH, items=[said("two", id="a"), said("three")])
        items = [{"id": "a"}, {"type": "item_reference", "id": told}, said("four")]
        second = await asked(client, PATH, items=items)
        found = (await client.get(f"{PATH}/{second['id']}/items?order=asc")).json()["data"]
        assert [item["content"][0]["text"] for item in found] == ["two", "one", "four"]
        assert [item["id"] for item in found[:2]] == ["a", told]
        await client.delete(f"{PATH}/{first['id']}")
        await client.delete(f"{PATH}/{second['id']}")
        answer = await asked(client, PATH, 404, items=[said("x"), {"id": "a"}])
        assert answer["error"]["message"].startswith("items[1]: Item with id 'a' not found.")


async def test_a_response_goes_on_from_one_of_a_conversation_that_is_gone(kept: Site) -> None:
    async with kept.started() as client:
        id = (await asked(client, PATH, items=[said("one")]))["id"]
        first = await asked(client, "/v1/responses", model="m", input="two", conversation=id)
        await client.delete(f"{PATH}/{id}")
        more = {"previous_response_id": first["id"]}
        await asked(client, "/v1/responses", model="m", input="three", **more)
        prompt, _ = kept.start.runners[-1][1].requests[-1]
        texts = [message["content"] for message in prompt.messages]
        assert texts == ["one", "two", "two", "three"]


async def test_a_server_that_keeps_nothing_says_so(model_folder: Path, tmp_path: Path) -> None:
    async with site_of(model_folder, tmp_path / "state", max_responses_bytes=0).started() as client:
        answer = await asked(client, PATH, 400)
        assert "MAX_RESPONSES_SIZE" in answer["error"]["message"]
        named = {"model": "m", "input": "x", "conversation": "conv_x"}
        answer = await asked(client, "/v1/responses", 400, **named)
        assert answer["error"]["param"] == "conversation"


async def test_each_key_sees_its_own_conversations(tmp_path: Path) -> None:
    state = State(tmp_path, TABLES)
    store = ConversationStore(state, 10**6)
    id = (await store.create(ALICE, [said("one", id="a")], {}))["id"]
    for work in (
        store.get(BOB, id),
        store.update(BOB, id, {}),
        store.delete(BOB, id),
        store.items(BOB, id),
        store.item(BOB, id, "a"),
        store.append(BOB, id, [said("two")]),
        store.delete_item(BOB, id, "a"),
    ):
        with pytest.raises(NoSuchConversationError, match=id):
            await work
    assert [item["id"] for item in await store.items(ALICE, id)] == ["a"]
    assert (await store.get(Caller(), id))["id"] == id  # the server's owner sees all
    await state.close()


async def test_the_bound_holds_and_what_was_used_last_stays(tmp_path: Path) -> None:
    now = [0.0]
    state = State(tmp_path, TABLES)
    store = ConversationStore(state, 1000, lambda: now[0])
    ids = []
    for number in range(3):
        now[0] += 1
        ids.append((await store.create(ALICE, [said("x" * 150, id=f"{number}")], {}))["id"])
    now[0] += 1
    await store.items(ALICE, ids[0])
    now[0] += 1
    await store.append(ALICE, ids[2], [said("x" * 300)])
    with pytest.raises(NoSuchConversationError):
        await store.get(ALICE, ids[1])
    assert len(await store.items(ALICE, ids[0])) == 1
    with pytest.raises(RequestError, match="1000 bytes"):
        await store.append(ALICE, ids[2], [said("x" * 900)])
    assert len(await store.items(ALICE, ids[0])) == 1  # nothing was deleted for it
    assert len(await store.items(ALICE, ids[2])) == 2
    await state.close()


async def test_the_file_of_an_older_version_gets_the_tables(tmp_path: Path) -> None:
    state = State(tmp_path, TABLES)
    store = ConversationStore(state, 10**6)
    await store.create(ALICE, [], {})
    await state.close()
    with sqlite3.connect(tmp_path / DATABASE) as db:
        drop = "DROP TABLE items; DROP TABLE conversations; DROP TABLE response_items;"
        db.executescript(drop + "DROP TRIGGER response_deleted; PRAGMA user_version = 2;")
    db.close()
    id = (await store.create(ALICE, [said("one")], {}))["id"]
    assert len(await store.items(ALICE, id)) == 1
    await state.close()
