"""Errors of all API families: each has its status, its family's format and a message.

Elsewhere: a full queue (tests/server/features/page/test_observing.py), clients that disconnect
(test_http.py), models that do not fit (test_model_manager.py), processes that crash
(test_crashes.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from support.contract import Case, listed

pytestmark = pytest.mark.server

USER = {"messages": [{"role": "user", "content": "x"}]}
FAMILIES: dict[str, dict[str, Any]] = {
    "/api/generate": {"prompt": "x"},
    "/api/chat": USER,
    "/v1/completions": {"prompt": "x"},
    "/v1/chat/completions": USER,
    "/v1/responses": {"input": "x"},
    "/v1/messages": USER | {"max_tokens": 60},
}
ALL = list(FAMILIES)
CHATS = ["/api/chat", "/v1/chat/completions", "/v1/responses", "/v1/messages"]
CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
TOOLS = [{"type": "function", "function": {"name": "add"}}]
BAD_URI, BAD_SOURCE = (
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,h!"}},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "h!"}},
)
BAD_INPUT = {"type": "input_image", "image_url": "data:image/png;base64,h!"}
INVALID, UNKNOWN = (400, "invalid_request_error"), (404, "not_found_error")
BROKEN = (500, "api_error")


def said(part: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the messages of a user whose message has one part."""
    return [{"role": "user", "content": [part]}]


def seeing(**more: Any) -> dict[str, Any]:
    """Return what a request has for a model that takes images."""
    return {"model": "demo", **more}


# The paths, what the request has besides, the status and type, and a part of the message.
ERRORS = [
    (ALL, {"model": "nobody"}, UNKNOWN, "'nobody' not found"),
    (ALL, {"model": "broken"}, BROKEN, "tensor count"),
    (ALL, {"model": "embedder"}, INVALID, "does not support"),
    (ALL[:2], {"model": None}, INVALID, "model is required"),
    (ALL, {"stream": "no"}, INVALID, "stream must be true or false, not a string"),
    (ALL, {"options": {"top_p": 2}}, INVALID, "top_p"),
    (ALL, {"options": {"num_ctx": "x"}}, INVALID, "num_ctx"),
    (ALL[2:], {"temperature": "warm"}, INVALID, "temperature must be a number, not a string"),
    (ALL[:2], {"options": {"temperature": "warm"}}, INVALID, "temperature must be a number"),
    (ALL, {"model": 3}, INVALID, "model must be a string, not an integer"),
    (ALL, {"options": []}, INVALID, "options must be an object, not a list"),
    (ALL, {"keep_alive": {}}, INVALID, "keep_alive must be a number or a string, not an object"),
    (CHATS[:2], {"messages": [USER["messages"][0], 7]}, INVALID, "messages[1] must be an object"),
    (["/api/chat"], {"messages": [{"content": "x"}]}, INVALID, "messages[0].role is missing"),
    (["/api/generate"], seeing(images=["h!"]), INVALID, "invalid base64 in images[0]"),
    ([CHAT], seeing(messages=said(BAD_URI)), INVALID, "invalid base64 in messages[0]"),
    ([MESSAGES], seeing(messages=said(BAD_SOURCE)), INVALID, "invalid base64 in messages[0]"),
    (["/v1/responses"], seeing(input=said(BAD_INPUT)), INVALID, "invalid base64 in input[0]"),
    (CHATS[:2], {"tools": TOOLS}, INVALID, "tools"),
    ([CHAT, MESSAGES], {"messages": []}, INVALID, "messages"),
    ([CHAT], {"messages": None}, INVALID, "messages"),
    ([CHAT], {"max_completion_tokens": -2}, INVALID, "max_completion_tokens"),
    ([CHAT], {"max_completion_tokens": 0, "max_tokens": 5}, INVALID, "max_completion_tokens"),
    ([CHAT], {"reasoning_effort": "high"}, INVALID, "thinking"),
    ([CHAT], {"num_keep": -5}, INVALID, "num_keep"),
    ([MESSAGES], {"max_tokens": None}, INVALID, "max_tokens"),
    ([MESSAGES], {"max_tokens": 0}, INVALID, "max_tokens"),
    ([MESSAGES], {"messages": [{"role": "robot", "content": "x"}]}, INVALID, "role"),
    ([MESSAGES], {"stop_sequences": [""]}, INVALID, "stop_sequences"),
]


def message_of(response: httpx.Response, kind: str) -> str:
    """Return the message of an error, whose format must be that of the path's family."""
    path, error = response.request.url.path, response.json()
    if path.startswith("/api/"):
        assert set(error) == {"error"}
        return error["error"]
    if path == MESSAGES:
        assert set(error) == {"type", "error", "request_id"}
        assert error["type"] == "error"
        assert error["request_id"] == response.headers["request-id"]
        assert error["request_id"].startswith("req_")
    else:
        assert set(error) == {"error"}
        assert set(error["error"]) == {"message", "type", "param", "code"}
    assert error["error"]["type"] == kind
    return error["error"]["message"]


@pytest.mark.parametrize(
    ("path", "more", "expected", "text"),
    [(path, *error) for paths, *error in ERRORS for path in paths],
)
@pytest.mark.parametrize("is_streaming", [False, True])
def test_error_has_its_status_format_and_message(
    client: httpx.Client, path: str, more: Any, expected: Any, text: str, is_streaming: bool
) -> None:
    status, kind = expected
    body: dict[str, Any] = {"model": "talker", "stream": is_streaming} | FAMILIES[path] | more
    response = client.post(path, json=body)
    assert response.status_code == status, response.text
    assert text in message_of(response, kind)
    assert "/tmp" not in response.text


def generate(holds: Callable[[Any], bool], **body: str) -> Case:
    return Case("/api/generate", {"model": "talker", "prompt": "x", **body}, holds)


CASES = {
    "the error of a damaged file has no path": generate(
        lambda a: "/" not in a.json["error"], model="broken"
    ),
    "a model name has no spaces": Case(
        "/api/pull",
        {"model": "no body", "stream": False},
        lambda a: (a.status, a.json["error"])
        == (400, "a model name must not contain spaces: 'no body'"),
    ),
    "there are no accounts": Case(
        "/api/me", None, lambda a: a.status == 404, method="POST"
    ),
    "there are no web searches": Case(
        "/api/experimental/web_search", {"query": "x"}, lambda a: a.status == 404
    ),
}  # fmt: skip


@listed(CASES)
def test_error(client: httpx.Client, case: Case) -> None:
    case.check(client)


@pytest.mark.parametrize(
    ("path", "more", "param"),
    [
        (CHAT, {"temperature": "warm"}, "temperature"),
        (CHAT, {"temperature": 101}, "temperature"),
        (CHAT, {"model": "nobody"}, None),
        (CHAT, {"messages": [USER["messages"][0], 7]}, "messages[1]"),
        (CHAT, {"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        (CHAT, seeing(messages=said(BAD_URI)), "messages[0].content[0]"),
        (CHAT, {"audio": {"voice": "x"}}, "audio"),
        (CHAT, {"tool_choice": "required"}, "tool_choice"),
        (CHAT, {"response_format": {"type": "json_schema"}}, "response_format"),
        (CHAT, {"logit_bias": {"5": "x"}}, "logit_bias"),
        (CHAT, {"regex": "a("}, "regex"),
        ("/v1/completions", {"n": 129}, "n"),
        ("/v1/completions", {"prompt": [5, "x"]}, "prompt[0]"),
        ("/v1/responses", {"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ("/v1/responses", {"input": [{"role": "user", "content": 5}]}, "input[0]"),
        ("/v1/embeddings", {"model": "embedder", "input": 5}, "input"),
    ],
)
def test_an_error_of_openais_names_the_field_in_param(
    client: httpx.Client, path: str, more: Any, param: str | None
) -> None:
    body = {"model": "talker"} | FAMILIES.get(path, {}) | more
    error = client.post(path, json=body).json()["error"]
    assert error["param"] == param, error["message"]
