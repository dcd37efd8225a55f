"""HTTP itself: bodies, methods, names and origins, errors before and after the first line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.fake_runner import FakeStart, lines_of

from tampu.errors import (
    ContextLengthError,
    ModelFileError,
    OutOfMemoryError,
    RunnerDiedError,
    TampuError,
    UnsupportedModelError,
)
from tampu.server.front.errors import STATUS, BusyError, public_message, status_of
from tampu.server.front.trusted_host import host_name
from tampu.server.options import ServerOptions
from tampu.settings.address import is_loopback
from tests.server.conftest import Site

MESSAGES = [{"role": "user", "content": "x"}]


@pytest.mark.parametrize(
    ("method", "path"),
    [("PUT", "/api/generate"), ("GET", "/api/chat"), ("DELETE", "/api/tags"), ("POST", "/api/ps")],
)
def test_a_wrong_method_is_405(site: Site, method: str, path: str) -> None:
    [response] = site.call((method, path, {}))
    assert response.status_code == 405
    assert response.json() == {"error": "method not allowed"}


@pytest.mark.parametrize("path", ["/nope", "/api/nope", "/docs", "/redoc", "/nope/", "/api/tags//"])
def test_an_unknown_path_is_404(site: Site, path: str) -> None:
    [response] = site.call(("GET", path, {"follow_redirects": True}))
    assert response.status_code == 404


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/v1/chat/completion", "/v1/chat/completions"), ("/v1/v1/models", "/v1/models"),
        ("/chat/completion", "/chat/completions"),
        ("/api/v1/chat/completions", "/v1/chat/completions"), ("/api/genrate", "/api/generate"),
        ("/API/Chat", "/api/chat"), ("/v1/message", "/v1/messages"), ("/tokenise", "/tokenize"),
    ],
)  # fmt: skip
def test_a_mistyped_path_is_answered_with_the_one_that_is_near(
    site: Site, path: str, meant: str
) -> None:
    [response] = site.call(("POST", path, {"json": {}}))
    assert response.status_code == 404
    message = response.json()["error"]
    message = message if isinstance(message, str) else message["message"]
    assert f"there is no path {path}: did you mean {meant}? " in message


SLASHES = [
    "/api/version", "/api/tags", "/v1/models", "/v1/models/m", "/models", "/health", "/metrics",
    "/v1/models/a%2Fb",
]  # fmt: skip


@pytest.mark.parametrize("path", SLASHES)
@pytest.mark.parametrize("query", ["", "?a=b&c=d%26"])
def test_a_final_slash_is_redirected(site: Site, path: str, query: str) -> None:
    for method in ("GET", "HEAD"):
        [response] = site.call((method, f"{path}/{query}", {}))
        assert response.status_code == 307
        assert response.next_request.url.raw_path.decode() == path + query
        assert response.next_request.method == method


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/chat", {"model": "m", "stream": False, "messages": MESSAGES}),
        ("/v1/chat/completions", {"model": "m", "messages": MESSAGES}),
        ("/chat/completions", {"model": "m", "messages": MESSAGES}),
        ("/v1/messages", {"model": "m", "messages": MESSAGES, "max_tokens": 5}),
    ],
)
def test_a_post_with_a_final_slash_is_sent_again(site: Site, path: str, body: Any) -> None:
    [response] = site.call(("POST", f"{path}/", {"json": body, "follow_redirects": True}))
    assert response.status_code == 200
    assert [each.status_code for each in response.history] == [307]


def test_a_proxy_may_put_a_path_before_the_redirected_one(site: Site) -> None:
    [response] = site.call(("POST", "/v1/chat/completions/", {"json": {}}))
    assert response.headers["location"] == "../completions"


@pytest.mark.parametrize("path", ["/nothing/like/it", "/", "/v1/" + "a" * 8000])
def test_a_path_like_no_other_has_no_hint(site: Site, path: str) -> None:
    [response] = site.call(("POST", path, {"json": {}}))
    assert "did you mean" not in response.text


@pytest.mark.parametrize("name", ["../m", " x", "a/b/c/d/e", "m/../m", "\x00", "x" * 500])
def test_a_name_that_no_model_can_have_is_not_to_be_pulled(
    post: Callable[..., Any], name: str
) -> None:
    error = post("/v1/chat/completions", model=name, messages=MESSAGES).json()["error"]["message"]
    assert error == f"model '{name[:200]}' not found; `tampu list` shows the models"


@pytest.mark.parametrize(
    ("path", "fields", "status"),
    [
        ("/v1/chat/completions", {"max_tokens": 5.0, "seed": 1.0, "n": 2.0, "top_k": 3.0}, 200),
        ("/v1/chat/completions", {"max_tokens": 5.5}, 400),
        ("/v1/chat/completions", {"max_tokens": 5.0, "n": 1.5}, 400),
        ("/v1/chat/completions", {"max_tokens": 5.0, "temperature": "1"}, 400),
        ("/v1/chat/completions", {"max_tokens": 1e300}, 400),
        ("/v1/chat/completions", {"max_tokens": -0.0}, 400),
        ("/v1/messages", {"max_tokens": 5.0}, 200),
        ("/v1/responses", {"max_output_tokens": 20.0, "input": "x"}, 200),
        ("/v1/completions", {"max_tokens": 5.0, "prompt": "x", "logprobs": 1.0}, 200),
        ("/api/generate", {"prompt": "x", "context": [1.0, 2], "stream": False}, 200),
        ("/api/generate", {"prompt": "x", "context": [1.0] * 100_000, "stream": False}, 400),
        ("/api/chat", {"messages": MESSAGES, "stream": 1.0}, 400),
    ],
)
def test_integers_may_be_written_with_a_fraction_of_zero(
    site: Site, path: str, fields: dict[str, Any], status: int
) -> None:
    body = {"model": "m", "messages": MESSAGES, **fields}
    [response] = site.call(("POST", path, {"json": body}))
    assert response.status_code == status, response.text
    assert status != 400 or "must be" in response.text or "too large" in response.text


@pytest.mark.parametrize("number", ["1e400", "-1E+999", "123456789e309"])
def test_a_number_that_is_too_large_is_shown(site: Site, number: str) -> None:
    call = {"function": {"name": "f", "arguments": {"a": 0.5}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"default": [0.5]}}}
    said = [{"role": "assistant", "content": "", "tool_calls": [call]}]
    for fields in ({"messages": said}, {"tools": [tool]}, {"format": {"const": 0.5}}):
        text = json.dumps({"model": "m", **fields}).replace("0.5", number)
        [response] = site.call(("POST", "/api/chat", {"content": text}))
        assert response.status_code == 400
        assert response.json() == {"error": f"invalid JSON: the number {number} is too large"}


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200), ("localhost:11434", 200), ("127.0.0.1:1", 200), ("[::1]:11434", 200),
        ("LOCALHOST", 200), ("a.localhost", 200), ("localhost.", 200), ("127.9.9.9", 200),
        ("evil.com", 403), ("localhost.evil.com", 403), ("127.0.0.1.nip.io", 403),
        ("localhost/?", 403), ("localhost#", 403), ("a.local", 403), ("a.internal", 403),
        ("192.168.1.1", 403), ("localhost:x", 403), ("evil.com@localhost", 403), ("0x7f.1", 403),
        ("xlocalhost", 403), (" ", 403),
    ],
)  # fmt: skip
def test_only_the_names_of_this_machine_are_answered(site: Site, host: str, status: int) -> None:
    [response] = site.call(("GET", "/api/tags", {"headers": {"host": host}}))
    assert response.status_code == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200), ({"origin": "http://localhost:3000"}, 200), ({"origin": "app://x"}, 200),
        ({"origin": "http://evil.com"}, 403), ({"origin": "null"}, 403),
        ({"origin": "http://localhost.evil.com"}, 403), ({"origin": "http://notlocalhost"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403), ({"sec-fetch-site": "same-origin"}, 200),
    ],
)  # fmt: skip
def test_foreign_origins_are_refused(site: Site, headers: dict[str, str], status: int) -> None:
    options = {"json": {"model": "m", "prompt": "x"}, "headers": headers}
    [response] = site.call(("POST", "/api/generate", options))
    assert response.status_code == status
    assert response.headers.get("access-control-allow-origin") != "*"


def test_local_pages_get_the_headers_that_browsers_ask_for(site: Site) -> None:
    headers = {
        "origin": "http://localhost:3000",
        "access-control-request-method": "POST",
        "access-control-request-headers": "content-type",
    }
    [local] = site.call(("OPTIONS", "/api/chat", {"headers": headers}))
    assert local.status_code == 200
    assert local.headers["access-control-allow-origin"] == "http://localhost:3000"
    assert local.headers["access-control-allow-methods"] == "GET, POST, DELETE, OPTIONS"
    assert local.headers["access-control-allow-headers"] == "content-type"
    assert "access-control-allow-private-network" not in local.headers


def test_pages_on_the_internet_whose_origin_is_allowed_may_reach_a_private_network(
    model_folder: Path,
) -> None:
    options = ServerOptions(origins=("https://chat.example",))
    site = Site(model_folder, FakeStart(), options)
    for origin, is_allowed in (("https://chat.example", True), ("https://evil.example", False)):
        headers = {
            "origin": origin,
            "access-control-request-method": "POST",
            "access-control-request-headers": "content-type",
            "access-control-request-private-network": "true",
        }
        [found] = site.call(("OPTIONS", "/api/chat", {"headers": headers}))
        allowed = {name for name in found.headers if name.startswith("access-control-allow")}
        assert found.status_code == 200
        assert (found.headers.get("access-control-allow-private-network") == "true") == is_allowed
        assert bool(allowed) == is_allowed
        if is_allowed:
            assert found.headers["access-control-allow-origin"] == origin


@pytest.mark.parametrize(
    "more",
    [
        {"origin": "http://evil.com"}, {"origin": "null"}, {"origin": "http://localhost.evil.com"},
        {"access-control-request-method": "TRACE"},
    ],
)  # fmt: skip
def test_a_preflight_that_is_refused_allows_nothing(site: Site, more: dict[str, str]) -> None:
    headers = {"origin": "http://localhost:3000", "access-control-request-method": "POST"}
    [response] = site.call(("OPTIONS", "/api/chat", {"headers": headers | more}))
    assert response.status_code == 200
    assert not [name for name in response.headers if name.startswith("access-control")]
    assert response.headers["vary"] == "Origin"


def test_host_headers_are_parsed() -> None:
    assert host_name("[::1]:5") == "::1"
    assert host_name("A.b:80") == "a.b"
    assert host_name("a b") is None
    assert is_loopback("127.1.2.3")
    assert not is_loopback("8.8.8.8")


def test_an_error_before_the_first_line_has_its_status_and_no_path(
    post: Callable[..., Any],
) -> None:
    for options in ({}, {"stream": False}):
        response = post("/api/generate", model="m", prompt="refuse", **options)
        assert response.status_code == 500
        assert response.json() == {"error": "logits are NaN in x.gguf"}


def test_an_error_after_the_first_line_is_a_line(post: Callable[..., Any]) -> None:
    first, last = lines_of(post("/api/generate", model="m", prompt="hello die"))
    assert first["response"] == "hello"
    assert last == {"error": "the process of model 'm' has ended: signal SIGKILL"}


def test_an_error_without_streaming_is_the_answer(post: Callable[..., Any]) -> None:
    response = post("/api/generate", model="m", prompt="hello die", stream=False)
    assert response.status_code == 500
    assert "SIGKILL" in response.json()["error"]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ModelFileError("tensor count", "is wrong"), 500),
        (UnsupportedModelError("architecture 'x'"), 400), (OutOfMemoryError("no room"), 500),
        (RunnerDiedError("died"), 500), (ContextLengthError("too long"), 400),
        (BusyError("busy"), 503), (TampuError("other"), 500),
    ],
)  # fmt: skip
def test_an_error_of_loading_has_the_status_of_its_class(
    site: Site, post: Callable[..., Any], error: TampuError, status: int
) -> None:
    site.start.error = error
    response = post("/api/generate", model="m", prompt="x")
    assert response.status_code == status
    assert response.json()["error"].endswith(str(error))
    assert ("retry-after" in response.headers) == (status == 503)


def test_every_error_has_a_status() -> None:
    assert STATUS[-1][0] is TampuError
    assert status_of(TampuError("x")) == 500


@pytest.mark.parametrize(
    ("text", "public"),
    [
        ("cannot open /home/me/a b/m.gguf: denied", "cannot open m.gguf: denied"),
        ("'/x/y/z.gguf' is damaged", "'z.gguf' is damaged"),
        ("~/models/m.gguf", "m.gguf"),
        ("one of /v1/chat/completions, /v1/x, not '/v2/y'", None),
        ("12 of 3/4 tokens and/or http", "12 of 3/4 tokens and/or http"),
    ],
)
def test_messages_name_files_without_their_folders(text: str, public: str | None) -> None:
    assert public_message(TampuError(text)) == (public or text)


def test_internal_error_is_reported_without_details(site: Site) -> None:
    site.start.error = ZeroDivisionError("secret /path")
    site.transport.raise_app_exceptions = False
    [response] = site.call(("POST", "/api/generate", {"json": {"model": "m", "prompt": "x"}}))
    assert response.status_code == 500
    assert "secret" not in response.text


async def test_disconnecting_cancels_the_request(site: Site) -> None:
    async def leave(prompt: str, after: int) -> list[Any]:
        """Send a request over ASGI and disconnect after so many messages of the answer."""
        gone = asyncio.Event()
        sent = []
        content = json.dumps({"model": "m", "prompt": prompt}).encode()
        received = [{"type": "http.request", "body": content, "more_body": False}]

        async def receive() -> dict[Any | str, Any]:
            if received:
                return received.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)
            if len(sent) == after:
                gone.set()

        if after == 0:
            asyncio.get_running_loop().call_later(0.05, gone.set)
        scope = {
            "type": "http", "method": "POST", "path": "/api/generate", "raw_path": b"/api/generate",
            "query_string": b"", "headers": [], "http_version": "1.1", "scheme": "http",
        }  # fmt: skip
        await asyncio.wait_for(site.app(scope, receive, send), 5)
        return sent

    async with site.started() as _:
        assert len(await leave("forever", after=3)) >= 3
        assert await leave("wait", after=0) == []
        [(_, runner)] = site.start.runners
        assert (runner.cancelled, runner.running) == (2, 0)


@pytest.mark.parametrize(
    ("path", "fields", "is_default_streamed"),
    [
        ("/api/chat", {"messages": MESSAGES}, True),
        ("/api/generate", {"prompt": "x"}, True),
        ("/v1/chat/completions", {"messages": MESSAGES}, False),
        ("/v1/completions", {"prompt": "x"}, False),
        ("/v1/responses", {"input": "x"}, False),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 9}, False),
        ("/completion", {"prompt": "x"}, False),
    ],
)
def test_the_model_sends_its_text_as_it_comes_only_to_a_client_that_streams(
    site: Site,
    post: Callable[..., Any],
    path: str,
    fields: dict[str, Any],
    *,
    is_default_streamed: bool,
) -> None:
    for asked in ({}, {"stream": True}, {"stream": False}):
        answer = post(path, model="m", **fields, **asked)
        assert answer.status_code == 200, answer.text
    streamed = [each for _, runner in site.start.runners for each in runner.streamed]
    assert streamed == [is_default_streamed, True, False]
