"""Images by their addresses: fetched where TAMPU_IMAGE_URLS allows it, from its hosts only."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from support.local_http import Answer, LocalServer, Request
from support.serving import Server, start_server

from tampu.errors import RequestError
from tampu.server.features.image_urls.fetcher import ImageFetcher
from tampu.store.registry.options import RemoteOptions
from tests.clients.questions import picture

pytestmark = [pytest.mark.server, pytest.mark.slow]


def answer(request: Request) -> Answer:
    """Return what is at a path of the host of images."""
    return {
        "/circle.png": Answer(body=picture()),
        "/moved": Answer(302, {"Location": "/circle.png"}),
        "/away": Answer(302, {"Location": "http://localhost:1/circle.png"}),
        "/round": Answer(302, {"Location": "/round"}),
        "/large": Answer(body=b"x" * 2_000),
        "/text": Answer(body=b"no image"),
    }.get(request.path, Answer(404))


@pytest.fixture(scope="module")
def host() -> Iterator[LocalServer]:
    with LocalServer(answer) as local:
        yield local


@pytest.fixture(scope="module")
def fetching(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that fetches from this machine."""
    folder = tmp_path_factory.mktemp("home")
    variables = {"TAMPU_IMAGE_URLS": "127.0.0.1", "TAMPU_THREADS": "1"}
    server = start_server(folder / "models", folder, **variables)
    yield server
    server.end()


def requests(url: str) -> dict[str, Any]:
    """Return a question about an image for each route."""
    question = "What colour is it?"
    chat = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": question}]
    items = [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": question}]
    source = {"type": "image", "source": {"type": "url", "url": url}}
    blocks = [source, {"type": "text", "text": question}]
    result = [{"type": "tool_result", "tool_use_id": "x", "content": [source]}]
    return {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": chat}]},
        "/v1/responses": {"input": [{"role": "user", "content": items}]},
        "/v1/messages": {"messages": [{"role": "user", "content": blocks}], "max_tokens": 9},
        "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": result}]},
        "/v1/embeddings": {"input": ["x", {"content": chat}]},
        "/embeddings": {"messages": [{"role": "user", "content": chat}]},
        "/v2/embed": {"inputs": [{"content": chat}]},
    }


ROUTES = [*requests("")]


def ask(server: Server, route: str, url: str) -> httpx.Response:
    body = {"model": "demo", "temperature": 0} | requests(url)[route]
    return httpx.post(server.url + route, json=body, timeout=300)


@pytest.mark.parametrize("route", ROUTES)
def test_an_image_is_fetched_where_it_is_allowed(
    fetching: Server, host: LocalServer, route: str
) -> None:
    for path in ("/circle.png", "/moved"):
        response = ask(fetching, route, host.url + path)
        assert response.status_code == 200, response.text
        assert "tokens" in route or "embed" in route or "Red." in response.text


@pytest.mark.parametrize("route", ROUTES)
def test_no_image_is_fetched_without_the_setting(
    contract_server: Server, host: LocalServer, route: str
) -> None:
    before = len(host.requests)
    response = ask(contract_server, route, f"{host.url}/circle.png")
    assert response.status_code == 400
    assert "TAMPU_IMAGE_URLS" in response.text
    assert len(host.requests) == before


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/nothing", "status 404"),
        ("/round", "more than 3 redirects"),
        ("/away", "its host is not in TAMPU_IMAGE_URLS"),
        ("/text", "image"),
    ],
)
def test_what_is_no_image_is_an_error_of_the_request(
    fetching: Server, host: LocalServer, path: str, told: str
) -> None:
    response = ask(fetching, "/v1/chat/completions", host.url + path)
    assert response.status_code == 400, response.text
    assert told in response.json()["error"]["message"]


def fetch(*urls: str, hosts: tuple[str, ...], **limits: float) -> None:
    parts = [{"type": "input_image", "image_url": url} for url in urls]
    fetcher = ImageFetcher(hosts, RemoteOptions(), **limits)
    asyncio.run(fetcher.fill([{"role": "user", "content": parts}]))


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]"])
def test_no_private_address_is_connected_to_unless_it_is_named(
    host: LocalServer, name: str
) -> None:
    before = len(host.requests)
    url = host.url.replace("127.0.0.1", name)
    with pytest.raises(RequestError, match="in a private network; TAMPU_IMAGE_URLS does not name"):
        fetch(f"{url}/circle.png", hosts=("on",))
    assert len(host.requests) == before


def test_other_hosts_than_the_named_are_refused() -> None:
    with pytest.raises(RequestError, match="its host is not in TAMPU_IMAGE_URLS"):
        fetch("https://example.com/x.png", hosts=("127.0.0.1",))


def test_the_images_of_a_request_have_a_size_limit_together(host: LocalServer) -> None:
    url = f"{host.url}/large"
    fetch(url, hosts=("127.0.0.1",), max_bytes=2_000)
    with pytest.raises(RequestError, match="more than 3000 bytes"):
        fetch(url, url, hosts=("127.0.0.1",), max_bytes=3_000)


def test_fetching_has_a_time_limit(host: LocalServer) -> None:
    with pytest.raises(RequestError, match="did not send it within 0 s"):
        fetch(f"{host.url}/large", hosts=("127.0.0.1",), max_seconds=0.0)


def test_a_request_has_a_limited_number_of_images() -> None:
    with pytest.raises(RequestError, match="at most 16 images"):
        fetch(*["https://example.com/x.png"] * 17, hosts=("on",))
