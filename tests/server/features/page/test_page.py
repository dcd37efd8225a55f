"""The page: who gets it, and the headers that protect it. `tests/page` looks at it in a browser."""

from __future__ import annotations

import re
from typing import Any

import pytest
from support.fake_runner import FakeStart

from tampu.engine.load_options import LoadOptions
from tampu.sampling.parameters import PARAMETERS
from tampu.server.features.page.routes import STATIC
from tampu.server.options import ServerOptions
from tests.server.conftest import Site

CHROMIUM = "text/html,application/xhtml+xml,application/xml;q=0.9,image/webp,*/*;q=0.8"
FIRST_LOAD = 350_000  # bytes, compressed
ASSETS = sorted(path.name for path in (STATIC / "assets").iterdir())


def get(site: Site, path: str, **headers: str) -> Any:
    return site.call(("GET", path, {"headers": headers}))[0]


def policy(response: Any) -> dict[str, list[str]]:
    words = [part.split() for part in response.headers["content-security-policy"].split(";")]
    return {name: values for name, *values in words}


@pytest.mark.parametrize("accept", [CHROMIUM, "text/html", "TEXT/HTML;q=0.5", "a/b, text/html"])
def test_browsers_get_the_page(site: Site, accept: str) -> None:
    response = get(site, "/", accept=accept)
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert "<title>tampu</title>" in response.text
    assert response.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("accept", ["*/*", "", "application/json", "text/plain", "text/htmlx"])
def test_other_clients_get_what_ollama_answers(site: Site, accept: str) -> None:
    response = get(site, "/", accept=accept)
    assert response.text == "Ollama is running"
    assert "accept" in response.headers["vary"]


def test_head_has_the_headers_of_the_page(site: Site) -> None:
    [response] = site.call(("HEAD", "/", {"headers": {"accept": CHROMIUM}}))
    assert (response.status_code, response.text) == (200, "")
    assert response.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize("path", ["/", *(f"/assets/{name}" for name in ASSETS)])
def test_every_file_forbids_foreign_code(site: Site, path: str) -> None:
    response = get(site, path, accept=CHROMIUM)
    rules = policy(response)
    assert rules["default-src"] == rules["base-uri"] == rules["frame-ancestors"] == ["'none'"]
    assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == ["'self'"]
    assert rules["require-trusted-types-for"] == ["'script'"]
    assert "unsafe" not in response.headers["content-security-policy"]
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["referrer-policy"] == "no-referrer"


def test_the_page_has_no_script_of_its_own_and_loads_only_its_assets(site: Site) -> None:
    text = get(site, "/", accept=CHROMIUM).text
    assert re.findall(r"<script(?![^>]*\bsrc=)[^>]*>|<style| on\w+=|style=", text) == []
    found = re.findall(r'(?:src|href)="([^"]+)"', text)
    addresses = [address for address in found if not address.startswith("data:")]
    assert {address.removeprefix("/assets/") for address in addresses} <= set(ASSETS)
    assert len(addresses) >= 2


def test_assets_are_kept_by_browsers_because_their_names_change(site: Site) -> None:
    for name in ASSETS:
        assert re.fullmatch(r"[\w.]+-[\w-]{8}\.(js|css)", name)
        response = get(site, f"/assets/{name}")
        assert "immutable" in response.headers["cache-control"]
        kind = "text/javascript" if name.endswith(".js") else "text/css"
        assert response.headers["content-type"] == f"{kind}; charset=utf-8"
        assert response.content == (STATIC / "assets" / name).read_bytes()


def test_files_are_compressed_for_those_who_can_read_that(site: Site) -> None:
    path = f"/assets/{ASSETS[0]}"
    plain = get(site, path, **{"accept-encoding": "identity"})
    small = get(site, path, **{"accept-encoding": "br, gzip"})
    assert "content-encoding" not in plain.headers
    assert small.headers["content-encoding"] == "gzip"
    assert small.content == plain.content
    assert int(small.headers["content-length"]) < int(plain.headers["content-length"])
    assert "accept-encoding" in plain.headers["vary"]


def test_the_whole_first_load_is_small(site: Site) -> None:
    text = get(site, "/", accept=CHROMIUM).text
    first = re.findall(r'"(/assets/[^"]+)"', text)
    sizes = [int(get(site, path).headers["content-length"]) for path in ["/", *first]]
    assert sum(sizes) < FIRST_LOAD


@pytest.mark.parametrize(
    "name", ["nothing.js", "index.html", "..%2findex.html", "%2e%2e", "a/b.js", ""]
)
def test_a_wrong_asset_is_404_in_json(site: Site, name: str) -> None:
    response = get(site, f"/assets/{name}", accept=CHROMIUM)
    assert response.status_code == 404
    assert "there is no path" in response.json()["error"]


def test_the_page_needs_no_key_but_what_it_asks_for_does(site: Site) -> None:
    options = ServerOptions(model=LoadOptions(context=1024), api_keys=("secret",))
    locked = Site(site.folder, FakeStart(), options)
    assert get(locked, "/", accept=CHROMIUM).status_code == 200
    assert get(locked, f"/assets/{ASSETS[0]}").status_code == 200
    assert get(locked, "/api/tags").status_code == 401
    assert get(locked, "/api/tags", authorization="Bearer secret").status_code == 200


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://192.168.1.5:11434", 200), ("http://192.168.1.5:8080", 403),
        ("http://192.168.1.6:11434", 403), ("ftp://192.168.1.5:11434", 403), ("null", 403),
        ("http://evil.com", 403), ("http://192.168.1.5:11434@evil.com", 403), ("", 403),
    ],
)  # fmt: skip
def test_the_page_of_a_server_in_a_network_may_use_it(site: Site, origin: str, status: int) -> None:
    options = ServerOptions(hosts=("0.0.0.0",), model=LoadOptions(context=1024))
    open_to_all = Site(site.folder, FakeStart(), options)
    for host in ("192.168.1.5:11434", ""):
        headers = {"host": host, "origin": origin}
        request = {"json": {"model": "m", "prompt": "x"}, "headers": headers}
        [response] = open_to_all.call(("POST", "/api/generate", request))
        assert response.status_code == (status if host else 403)


def test_the_parameters_are_those_of_the_table(site: Site) -> None:
    found = get(site, "/api/parameters").json()["parameters"]
    entries = {entry["name"]: entry for entry in found}
    assert entries["temperature"] | {"doc": ""} == {
        "name": "temperature", "openai": "temperature", "type": "float", "default": 0.8,
        "low": 0, "high": 100, "range": "a number from 0 to 100", "use": "sampling", "doc": "",
    }  # fmt: skip
    assert entries["num_predict"]["openai"] == "max_tokens"
    assert entries["seed"]["high"] is None
    assert entries["stop"]["low"] is entries["stop"]["high"] is None
    known = {row.ollama for row in PARAMETERS.values()}
    assert set(entries) <= known
    assert not {"mirostat", "engine"} & set(entries)
