"""Conversations, by the `openai` package, with the built-in model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from support.serving import Server

pytestmark = [pytest.mark.client, pytest.mark.server]

SUM: Any = {"type": "message", "role": "user", "content": "What is 27 + 58?"}


@pytest.fixture(scope="module")
def client(native: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{native.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def texts(client: openai.OpenAI, id: str) -> list[str]:
    found: list[Any] = list(client.conversations.items.list(id, order="asc"))
    return [item.content[0].text for item in found]


def test_a_conversation_is_created_changed_and_deleted(client: openai.OpenAI) -> None:
    made = client.conversations.create(metadata={"topic": "sums"}, items=[SUM])
    assert (made.object, made.metadata) == ("conversation", {"topic": "sums"})
    assert client.conversations.retrieve(made.id) == made
    changed = client.conversations.update(made.id, metadata={"topic": "more"})
    assert changed.metadata == {"topic": "more"}
    assert client.conversations.retrieve(made.id).metadata == {"topic": "more"}
    deleted = client.conversations.delete(made.id)
    assert (deleted.id, deleted.deleted) == (made.id, True)
    with pytest.raises(openai.NotFoundError, match=made.id):
        client.conversations.retrieve(made.id)
    with pytest.raises(openai.NotFoundError, match=made.id):
        client.responses.create(model="demo", input="Hi", conversation=made.id)


def test_items_are_added_listed_and_deleted(client: openai.OpenAI) -> None:
    made = client.conversations.create()
    said: list[Any] = [
        {"role": "user", "content": f"What is {number} + 58?"} for number in range(5)
    ]
    added = client.conversations.items.create(made.id, items=said)
    assert [item.status for item in added.data] == ["completed"] * 5
    assert texts(client, made.id) == [each["content"] for each in said]
    page = client.conversations.items.list(made.id, limit=2)
    assert [item.id for item in page.data] == [item.id for item in added.data[:2:-1]]
    assert page.has_more
    third = added.data[2]
    assert client.conversations.items.retrieve(third.id or "", conversation_id=made.id) == third
    left = client.conversations.items.delete(third.id or "", conversation_id=made.id)
    assert left == made
    with pytest.raises(openai.NotFoundError, match=third.id):
        client.conversations.items.retrieve(third.id or "", conversation_id=made.id)
    assert len(texts(client, made.id)) == 4


def test_responses_go_on_from_a_conversation_and_add_to_it(client: openai.OpenAI) -> None:
    made = client.conversations.create(items=[SUM])
    asked: dict[str, Any] = {"model": "demo", "temperature": 0, "max_output_tokens": 20}
    first = client.responses.create(input=[], conversation=made.id, **asked)
    assert first.conversation is not None
    assert first.conversation.id == made.id
    assert first.output_text == "85"
    second = client.responses.create(
        input="What is 10 + 20?", conversation={"id": made.id}, store=False, **asked
    )
    assert second.usage is not None
    assert first.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens
    with client.responses.stream(input="What is 11 + 20?", conversation=made.id, **asked) as stream:
        third = stream.get_final_response()
    said = [SUM["content"], "85", "What is 10 + 20?", second.output_text]
    assert texts(client, made.id) == [*said, "What is 11 + 20?", third.output_text]
    listed = client.responses.input_items.list(third.id, order="asc")
    assert len(list(listed)) == 5
