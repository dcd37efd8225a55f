"""Streams of OpenAI's and Anthropic's APIs: what breaks off after it began, and what is silent."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

import pytest
from support.sse import blocks_of

from tampu.server.front import http_response
from tampu.server.front.logs import JSONFormatter
from tests.server.conftest import Site

DIED = "the process of model 'm' has ended: signal SIGKILL"
PATHS = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"]


def ask(site: Site, path: str, text: str = "hello die") -> Any:
    messages = {"messages": [{"role": "user", "content": text}], "max_tokens": 9}
    given = {"/v1/completions": {"prompt": text}, "/v1/responses": {"input": text}}
    body = {"model": "m", "stream": True} | given.get(path, messages)
    return site.call(("POST", path, {"json": body}))[0]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_error_after_the_first_chunk_is_a_chunk_and_no_done_marker_follows(
    site: Site, path: str
) -> None:
    response = ask(site, path)
    assert response.status_code == 200
    *_, said, last = response.text.split("\n\n")[:-1]
    assert "hello" in said
    error = {"message": DIED, "type": "api_error", "param": None, "code": None}
    assert json.loads(last.removeprefix("data: ")) == {"error": error}
    assert "[DONE]" not in response.text


@pytest.mark.parametrize("path", PATHS)
def test_the_log_has_the_status_that_was_sent_and_the_error_after_it(
    site: Site, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ask(site, path)
    lines = [each for each in caplog.records if each.name == "tampu.access"]
    assert re.fullmatch(
        rf"POST {path} 200 [0-9.]+ ms, ended by the error 500: {DIED}", lines[-1].getMessage()
    )
    shown = json.loads(JSONFormatter().format(lines[-1]))
    assert (shown["status"], shown["error"]) == (200, f"500: {DIED}")
    ask(site, path, "refuse")
    last = [each for each in caplog.records if each.name == "tampu.access"][-1].getMessage()
    assert re.fullmatch(rf"POST {path} 500 [0-9.]+ ms", last)


def test_an_error_in_a_response_is_an_event(site: Site) -> None:
    *_, last = blocks_of(ask(site, "/v1/responses"))
    assert last["event"] == "error"
    assert DIED in last["data"]


def test_an_error_in_a_message_is_an_event(site: Site) -> None:
    *_, last = blocks_of(ask(site, "/v1/messages"))
    assert last["event"] == "error"
    assert '"type":"api_error"' in last["data"]
    assert DIED in last["data"]


@pytest.mark.parametrize("path", PATHS)
def test_an_error_before_the_first_event_has_its_status(site: Site, path: str) -> None:
    response = ask(site, path, "refuse")
    assert response.status_code == 500
    assert "NaN" in response.json()["error"]["message"]


@pytest.mark.parametrize("path", PATHS)
def test_silent_stream_gets_keep_alive_comments(
    site: Site, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_response, "KEEP_ALIVE_COMMENT_SECONDS", 0.01)
    response = ask(site, path, "hello pause there")
    assert "\n\n: more will come\n\n" in response.text
    blocks = blocks_of(response)  # comments are not events
    assert "there" in "".join(block["data"] for block in blocks)
