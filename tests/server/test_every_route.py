"""What holds on every route; the routes are those of the table, so that none is forgotten."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest
from support.fake_runner import FakeStart

from tampu.engine.load_options import LoadOptions
from tampu.server.features.page.routes import STATIC
from tampu.server.front import body
from tampu.server.front.body import MAX_BODY
from tampu.server.front.routes import Access
from tampu.server.options import ServerOptions
from tests.server.conftest import Site

ASSET = min(path.name for path in (STATIC / "assets").iterdir())
USE, MANAGE = "use-key", "manage-key"
PROBES = ("/", f"/assets/{ASSET}", "/health", "/v1/health", "/ready")
STRANGE = [{"x": 1}, ["x"], [[]], "x", 1.5, True, -1, [{"a": 1}], [1]]
FILLING = {
    "id_slot": "0", "model": "m", "name": ASSET, "digest": f"sha256:{'0' * 64}",
    "file_id": "file-x", "batch_id": "batch_x", "response_id": "resp_x",
    "conversation_id": "conv_x", "item_id": "msg_x",
}  # fmt: skip
LEAKS = re.compile(r"Traceback|0x[0-9a-f]{6}|/home/|/tmp/|/work/|site-packages")


@pytest.fixture(scope="module")
def locked(model_folder: Path) -> Site:
    options = ServerOptions(
        model=LoadOptions(context=1024), use_api_keys=(USE,), api_keys=(MANAGE,)
    )
    return Site(model_folder, FakeStart(), options)


@pytest.fixture(scope="module")
def site(model_folder: Path) -> Site:
    return Site(model_folder, FakeStart(), ServerOptions(model=LoadOptions(context=1024)))


def calls(
    site: Site,
    *,
    only: Callable[[Any], bool] | Callable[..., bool] | Callable[[Any], Any] = lambda _: True,
    **request: Any,
) -> list[Any]:
    """The methods and paths of the table, each as a request."""
    return [
        (method, re.sub(r"\{(\w+)(:\w+)?\}", lambda found: FILLING[found[1]], route.path), request)
        for route in site.app.state.routes
        for method in route.methods
        if only(route)
    ]


def statuses(site: Site, requests: list[Any]) -> dict[Any, Any]:
    return {
        f"{method} {path}": response.status_code
        for (method, path, _), response in zip(requests, site.call(*requests), strict=True)
    }


def bearer(key: str) -> dict[Any, Any]:
    return {"authorization": f"Bearer {key}"}


def has_body(route: Any) -> bool:
    return route.body is not None


@pytest.mark.parametrize(
    "headers",
    [
        {}, bearer(""), bearer("use-ke"), bearer("use-keys"), bearer("USE-KEY"), bearer(" "),
        bearer("x" * 10_000), {"authorization": USE}, {"authorization": f"Basic {USE}"},
        {"x-api-key": "wrong"}, {"x-api-key": ""}, bearer(USE) | {"x-api-key": "other"},
        {"cookie": f"key={USE}"}, bearer(MANAGE[:-1]), bearer(f"{MANAGE} {MANAGE}"),
        {"authorization": f"bearer{MANAGE}"}, {"authorization": "Bearer"},
    ],
)  # fmt: skip
def test_without_its_key_a_route_answers_401(locked: Site, headers: dict[str, str]) -> None:
    closed = calls(locked, only=lambda route: route.access is not Access.OPEN, headers=headers)
    assert set(statuses(locked, closed).values()) == {401}
    [unknown] = locked.call(("GET", "/nothing/here", {"headers": headers}))
    assert unknown.status_code == 401
    assert unknown.headers["www-authenticate"] == "Bearer"
    [openai] = locked.call(("GET", "/v1/models", {"headers": headers}))
    error = openai.json()["error"]
    assert error["type"] == "authentication_error"
    has_key = {*headers} & {"authorization", "x-api-key"}
    told = "the API key of this request is not valid" if has_key else "an API key is required"
    assert told in error["message"]
    assert error["code"] == ("invalid_api_key" if has_key else None)


def test_only_the_page_and_the_probes_need_no_key(locked: Site) -> None:
    opened = calls(locked, only=lambda route: route.access is Access.OPEN)
    found = statuses(locked, opened)
    assert {*found} == {f"{method} {path}" for path in PROBES for method in ("GET", "HEAD")}
    assert {*found.values()} <= {200, 503}  # other tests may have ended it


def test_a_key_for_using_models_does_not_manage_them(locked: Site) -> None:
    routes = [route for route in locked.app.state.routes for _ in route.methods]
    for headers in (bearer(USE), {"x-api-key": USE}):
        answers = locked.call(*calls(locked, headers=headers))
        for route, answer in zip(routes, answers, strict=True):
            refused = {403} if route.access is Access.MANAGE else set()
            assert {answer.status_code} & {401, 403} == refused, route.path
    load = {"lora_name": "x", "lora_path": "x"}
    [answer] = locked.call(
        ("POST", "/v1/load_lora_adapter", {"headers": bearer(USE), "json": load})
    )
    assert answer.json()["error"]["type"] == "permission_error"
    everything = statuses(locked, calls(locked, headers=bearer(MANAGE)))
    by_a_setting = {f"{method} /api/live/layers" for method in ("GET", "HEAD")}
    assert {name for name, status in everything.items() if status in {401, 403}} == by_a_setting


async def test_a_body_is_not_read_without_a_key(locked: Site) -> None:
    async def ask(method: Any, path: str) -> Any:
        async def receive() -> NoReturn:
            raise AssertionError("the body was read")

        sent = []

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http", "method": method, "path": path, "raw_path": path.encode(),
            "query_string": b"", "headers": [], "http_version": "1.1", "scheme": "http",
        }  # fmt: skip
        await locked.app(scope, receive, send)
        return sent[0]["status"]

    for method, path, _ in calls(locked, only=lambda route: route.access is not Access.OPEN):
        assert await ask(method, path) == 401


@pytest.mark.parametrize(
    "host",
    [
        "evil.com", "127.0.0.1.nip.io", "localhost.evil.com", "a.local", "localhost/?",
        "localhost#", "EVIL.COM", "evil.com.", "evil.com@localhost", "0x7f000001", "[::2]",
    ],
)  # fmt: skip
def test_foreign_host_is_refused(site: Site, host: str) -> None:
    assert set(statuses(site, calls(site, headers={"host": host})).values()) == {403}


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.com"}, {"origin": "null"}, {"origin": "http://notlocalhost"},
        {"sec-fetch-site": "cross-site"}, {"origin": "http://localhost.evil.com"},
        {"sec-fetch-site": "cross-site", "content-type": "text/plain"},
    ],
)  # fmt: skip
def test_foreign_origin_may_not_change_or_use_anything(site: Site, headers: dict[str, str]) -> None:
    unsafe = [call for call in calls(site, headers=headers) if call[0] not in ("GET", "HEAD")]
    assert set(statuses(site, unsafe).values()) == {403}


def test_foreign_origin_may_not_read_a_response(site: Site) -> None:
    headers = {"origin": "http://evil.com"}
    for response in site.call(*calls(site, headers=headers)):
        assert "access-control-allow-origin" not in response.headers
    preflight = headers | {
        "access-control-request-method": "POST",
        "access-control-request-private-network": "true",
    }
    asked = [("OPTIONS", path, {"headers": preflight}) for _, path, _ in calls(site)]
    for response in site.call(*asked):
        assert response.status_code == 200
        assert not [name for name in response.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "content",
    [
        b"", b"  ", b"{", b"[]", b'"x"', b"null", b'{"model": NaN}', b'{"model": "\xff"',
        b"\xef\xbb\xbf{", b'{"model": "\\ud800"', b'{"model": "m", "model": "base"}',
        b'{"x": {"a": 1, "b": [{"c": 1, "c": 2}]}}', b'{"x": 1e400}',
        b'{"x": [18446744073709551616]}', b'{"x": -9223372036854775809}',
        b'{"x": ' + b"1" * 5000 + b"}", b'{"x": ' + b"[" * 1000 + b"]" * 1000 + b"}", b"\x00{}",
        b'{"x": -Infinity}', b'{"x": ' + b'{"a":' * 100_000, b'{"x": ' + b"[" * 100_000,
    ],
)  # fmt: skip
def test_invalid_body_is_refused(site: Site, content: bytes) -> None:
    for response in site.call(*calls(site, only=has_body, content=content)):
        assert response.status_code == 400
        assert response.json()["error"]


@pytest.mark.slow
def test_each_field_of_a_wrong_type_is_named(site: Site) -> None:
    count = 0
    for route in filter(has_body, site.app.state.routes):
        wrong = [
            (field.name, value)
            for field in msgspec.structs.fields(route.body)
            for value in STRANGE
            if is_refused_by_name(route.body, field.name, value)
        ]
        requests = [(route.methods[0], route.path, {"json": {name: each}}) for name, each in wrong]
        for (name, value), response in zip(wrong, site.call(*requests), strict=True):
            assert response.status_code == 400, (route.path, name, value)
            assert name in response.text
        count += len(wrong)
    assert count > 500


def is_refused_by_name(body: type[msgspec.Struct], name: str, value: Any) -> bool:
    """Whether it is this field's value that is wrong, not another field that is missing."""
    try:
        msgspec.convert({name: value}, body)
    except msgspec.ValidationError as error:
        return name in str(error)
    return False


@pytest.mark.slow
def test_no_field_value_makes_a_route_fail_or_leak_secrets(site: Site) -> None:
    values = (*STRANGE, 2**31, 2**63 - 1, 1e308, "", [], {}, "é" * 10_000, None)
    for route in filter(has_body, site.app.state.routes):
        requests = [
            (route.methods[0], route.path, {"json": {"model": "m", field.name: value}})
            for field in msgspec.structs.fields(route.body)
            for value in values
        ]
        for request, response in zip(requests, site.call(*requests), strict=True):
            assert response.status_code < 500, (request, response.text)
            assert not LEAKS.search(response.text)


def test_a_body_over_the_limit_is_refused(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "MAX_BODY", 1000)

    async def without_end() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 100

    endless = [(*call[:2], {"content": without_end()}) for call in calls(site, only=has_body)]
    assert {*statuses(site, endless).values()} == {413}
    assert set(statuses(site, calls(site, only=has_body, content=b"x" * 1001)).values()) == {413}
    headers = {"content-length": str(MAX_BODY + 1)}
    assert set(statuses(site, calls(site, only=has_body, headers=headers)).values()) == {413}


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/api/version?" + "x" * 9000, {}, 414),
        ("/api/version", {f"x-{number}": "y" for number in range(120)}, 431),
    ],
)
def test_first_lines_over_the_limit_are_refused(
    site: Site, path: str, headers: dict[str, str], status: int
) -> None:
    [response] = site.call(("GET", path, {"headers": headers}))
    assert response.status_code == status


def test_every_response_has_a_request_id(site: Site) -> None:
    numbers = {response.headers["x-request-id"] for response in site.call(*calls(site))}
    assert len(numbers) == len(calls(site))
    for given, kept in (("abc-1", True), ("a b", False), ("x" * 65, False), ("\t", False)):
        [response] = site.call(("GET", "/", {"headers": {"x-request-id": given}}))
        assert (response.headers["x-request-id"] == given) is kept


def test_openapi_describes_exactly_the_routes(site: Site) -> None:
    [response] = site.call(("GET", "/openapi.json", {}))
    described = response.json()
    paths = {
        (method.lower(), re.sub(r":\w+\}", "}", route.path))
        for route in site.app.state.routes
        for method in route.methods
        if route.path != "/openapi.json"
    }
    assert paths == {
        (method, path) for path, operations in described["paths"].items() for method in operations
    }
    for operations in described["paths"].values():
        for operation in operations.values():
            assert operation["summary"]
    assert json.dumps(described).count('"$ref"') > 20
