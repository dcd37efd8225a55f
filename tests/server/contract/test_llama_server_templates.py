"""llama-server's own routes: what they do with a model's chat template, and say of it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

pytestmark = [pytest.mark.client, pytest.mark.server]


def applied(client: httpx.Client, **body: Any) -> Any:
    response = client.post("/apply-template", json={"model": "talker", **body})
    assert response.status_code == 200, response.text
    return response.json()["prompt"]


def test_a_template_is_applied(client: httpx.Client) -> None:
    messages = [{"role": "user", "content": "x <s>"}, {"role": "assistant", "content": "y"}]
    text = applied(client, messages=messages[:1])
    assert text == "user: x <s>\nassistant:"
    assert applied(client, messages=messages) == f"{text}y"


def test_a_prompt_may_lack_the_start_of_an_answer(client: httpx.Client) -> None:
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    asked: dict[str, Any] = {"model": "thinker", "messages": messages[:1]}
    closed = asked | {"add_generation_prompt": False}
    begun = applied(client, **asked)
    text = applied(client, **closed)
    assert text == "<|im_start|>user\nx<|im_end|>\n"
    assert begun == f"{text}<|im_start|>assistant\n"
    found, longer = (client.post("/tokenize", json=body).json() for body in (closed, asked))
    assert found["tokens"] == longer["tokens"][: found["count"]]
    assert found["count"] < longer["count"]
    continued = applied(client, **closed | {"messages": messages})
    assert continued == f"{begun}y"
    response = client.post("/v1/chat/completions", json=closed)
    assert response.status_code == 400
    assert "add_generation_prompt" in response.json()["error"]["message"]


def test_props_say_what_a_template_shows(client: httpx.Client) -> None:
    def props(model: str) -> Any:
        return client.get("/props", params={"model": model}).json()

    shown = {name for name, value in props("namespaced")["chat_template_caps"].items() if value}
    assert shown == {
        "supports_string_content", "supports_tools", "supports_tool_calls",
        "supports_parallel_tool_calls", "supports_system_role",
    }  # fmt: skip
    assert props("talker")["chat_template_caps"]["supports_tools"] is False
    assert not any(props("embedder")["chat_template_caps"].values())
