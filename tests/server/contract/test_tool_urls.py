"""Calls of tools at URLs: sent where TAMPU_TOOL_URLS allows it, to its URLs only."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from support.local_http import Answer, LocalServer, Request
from support.serving import Server, start_server

from tampu.errors import NotAllowedError, SettingsError, ToolCallError
from tampu.server.features.tool_urls.routes import MAX_CALLS, ToolCallBody, ToolURLs
from tampu.server.front.errors import BusyError
from tampu.settings.settings import Settings
from tampu.store.registry.options import RemoteOptions

pytestmark = [pytest.mark.server, pytest.mark.slow]

KEY = "a-secret-key"
PATHS = ("/weather", "/moved", "/broken", "/binary")


def answer(request: Request) -> Answer:
    """Return what the tool at a path answers."""
    if request.path == "/weather":
        city = json.loads(request.body)["arguments"]["city"]
        return Answer(body=f"22 degrees in {city}".encode())
    return {
        "/moved": Answer(307, {"Location": "/weather"}),
        "/broken": Answer(500, body=b"no\nsensor"),
        "/binary": Answer(body=b"\xff\x00 degrees"),
        "/large": Answer(body=b"x" * 2_000),
        "/silent": Answer(body=b"x", stall_after=0),
        "/packed": Answer(200, {"Content-Encoding": "gzip"}, b"x"),
    }.get(request.path, Answer(404))


@pytest.fixture(scope="module")
def tools() -> Iterator[LocalServer]:
    with LocalServer(answer) as local:
        yield local


@pytest.fixture(scope="module")
def calling(tmp_path_factory: pytest.TempPathFactory, tools: LocalServer) -> Iterator[Server]:
    """A server with a key that sends calls to some paths of this machine."""
    folder = tmp_path_factory.mktemp("home")
    urls = [tools.url + path for path in PATHS] + ["http://127.0.0.1:1/"]
    server = start_server(
        folder / "models", folder, TAMPU_TOOL_URLS=",".join(urls), TAMPU_USE_API_KEY=KEY
    )
    yield server
    server.end()


def send(server: Server, url: str, key: str = KEY, **more: Any) -> httpx.Response:
    body = {"url": url, "name": "weather", "arguments": {"city": "Lima"}} | more
    headers = {"authorization": f"Bearer {key}", "cookie": "a=b", "x-other": "c"} if key else {}
    return httpx.post(f"{server.url}/api/tools/call", json=body, headers=headers, timeout=300)


def test_a_call_is_sent_and_its_result_comes_back(calling: Server, tools: LocalServer) -> None:
    response = send(calling, f"{tools.url}/weather")
    assert response.status_code == 200
    assert response.json() == {"result": "22 degrees in Lima"}
    request = tools.requests[-1]
    assert request.method == "POST"
    assert json.loads(request.body) == {"name": "weather", "arguments": {"city": "Lima"}}
    assert request.headers["content-type"] == "application/json"
    assert not {"authorization", "cookie", "x-other"} & set(request.headers)
    assert KEY.encode() not in request.body
    assert send(calling, f"{tools.url}/binary").json() == {"result": "\ufffd\x00 degrees"}


def test_a_call_is_one_line_of_the_log_without_its_texts(
    calling: Server, tools: LocalServer
) -> None:
    before = calling.log.read_text().count(" call: ")
    send(calling, f"{tools.url}/weather", name="get\nweather")
    send(calling, f"{tools.url}/weather?secret=1")
    told = [line for line in calling.log.read_text().splitlines() if " call: " in line][before:]
    assert len(told) == 2
    assert f"url={tools.url}/weather tool=get weather key=" in told[0]
    assert "state=ok" in told[0]
    assert "argument_chars=16 result_chars=18" in told[0]
    assert "state=refused" in told[1]
    assert "Lima" not in calling.log.read_text()
    assert "secret" not in "".join(told)


def test_a_key_is_needed(calling: Server, tools: LocalServer) -> None:
    before = len(tools.requests)
    assert send(calling, f"{tools.url}/weather", key="").status_code == 401
    assert send(calling, f"{tools.url}/weather", key="another").status_code == 401
    assert len(tools.requests) == before


@pytest.mark.parametrize(
    "url",
    [
        "{tools}/weather/", "{tools}/weather?x=1", "{tools}/weather#x", "{tools}//weather",
        "{tools}/x/../weather", "{tools}/%77eather", "{tools}/", " {tools}/weather",
        "{tools}/weather\r\nHost: x", "{other}/weather", "http://[::1]:{port}/weather",
        "http://2130706433:{port}/weather", "http://127.1:{port}/weather",
        "http://user@127.0.0.1:{port}/weather", "http://169.254.169.254/latest/meta-data/",
        "file:///etc/passwd", "ftp://127.0.0.1/weather", "/weather", "",
    ],
)  # fmt: skip
def test_other_urls_are_refused_and_nothing_is_sent(
    calling: Server, tools: LocalServer, url: str
) -> None:
    port = tools.host.rpartition(":")[2]
    other = tools.url.replace("127.0.0.1", "localhost")
    before = len(tools.requests)
    response = send(calling, url.format(tools=tools.url, other=other, port=port))
    assert response.status_code == 403, response.text
    assert "TAMPU_TOOL_URLS" in response.json()["error"]
    assert len(tools.requests) == before


def test_no_url_is_allowed_without_the_setting(contract_server: Server, tools: LocalServer) -> None:
    before = len(tools.requests)
    response = send(contract_server, f"{tools.url}/weather", key="")
    assert response.status_code == 403
    assert "TAMPU_TOOL_URLS" in response.json()["error"]
    assert len(tools.requests) == before


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("{tools}/broken", "answered with status 500: no sensor"),
        ("{tools}/moved", "status 307, and redirects are not followed"),
        ("http://127.0.0.1:1/", "cannot reach 127.0.0.1:1"),
    ],
)
def test_a_url_without_a_result_is_an_error(
    calling: Server, tools: LocalServer, url: str, told: str
) -> None:
    before = len(tools.requests)
    response = send(calling, url.format(tools=tools.url))
    assert response.status_code == 502, response.text
    assert told in response.json()["error"]
    assert len(tools.requests) <= before + 1  # no redirect is followed, and nothing tried again


@pytest.mark.parametrize(
    "more",
    [{"name": ""}, {"name": "x" * 257}, {"name": 5}, {"arguments": []}, {"arguments": "x"}],
)
def test_a_call_that_is_none_is_refused(
    calling: Server, tools: LocalServer, more: dict[str, Any]
) -> None:
    before = len(tools.requests)
    assert send(calling, f"{tools.url}/weather", **more).status_code == 400
    assert len(tools.requests) == before


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/large", "the result has more than 1000 bytes"),
        ("/packed", "the result is compressed"),
        ("/silent", "no result within 0.2 s"),
    ],
)
def test_time_and_size_have_limits(path: str, told: str) -> None:
    with LocalServer(answer) as local:
        url = local.url + path
        sender = ToolURLs([url], RemoteOptions(), max_bytes=1000, max_seconds=0.2)
        with pytest.raises(ToolCallError, match=told):
            asyncio.run(sender.call(ToolCallBody(url, "f")))
        sender.close()


def test_no_more_than_a_number_of_calls_run_at_a_time() -> None:
    async def many(sender: ToolURLs, url: str) -> list[str | BaseException]:
        calls = [sender.call(ToolCallBody(url, "f")) for _ in range(MAX_CALLS + 2)]
        return await asyncio.gather(*calls, return_exceptions=True)

    with LocalServer(answer) as local:
        url = f"{local.url}/silent"
        sender = ToolURLs([url], RemoteOptions(), max_seconds=0.5)
        ended = asyncio.run(many(sender, url))
        sender.close()
    assert [type(one) for one in ended] == [ToolCallError] * MAX_CALLS + [BusyError] * 2


def test_a_host_that_no_url_names_stays_closed(tools: LocalServer) -> None:
    """The URLs themselves are what is allowed, not their hosts."""
    sender = ToolURLs([f"{tools.url}/weather"], RemoteOptions())
    with pytest.raises(NotAllowedError):
        asyncio.run(sender.call(ToolCallBody(f"{tools.url}/broken", "f")))


@pytest.mark.parametrize(
    "text",
    ["weather", "ftp://a/b", "http://", "http://a:b@c/", "http://a:0/", "http://a/#b", "http://ä/"],
)
def test_the_setting_has_urls_alone(text: str) -> None:
    with pytest.raises(SettingsError, match="TAMPU_TOOL_URLS"):
        Settings.from_environment({"HOME": "/nowhere", "TAMPU_TOOL_URLS": text})


def test_the_setting_is_off_or_a_list() -> None:
    def urls(text: str) -> tuple[str, ...]:
        given = {"HOME": "/nowhere", "TAMPU_TOOL_URLS": text}
        return Settings.from_environment(given).tool_urls

    assert urls("") == urls("off") == ()
    assert urls("http://a:80/b, https://c/") == ("http://a:80/b", "https://c/")
