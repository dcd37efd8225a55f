"""`POST /api/pull`, `push` and `create` with a registry on this machine, good or rogue."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.fake_runner import FakeStart, lines_of
from support.local_http import Answer, Request
from support.registries import (
    RogueRegistry,
    assert_only_missing,
    described,
    done_ranges,
    manifest,
    ranged,
)
from support.stores import files, names
from support.tiny_gguf import write_gguf
from support.tiny_model import Tiny, write_tiny
from support.waiting import until, wait_until

from tampu.engine.load_options import LoadOptions
from tampu.ml.gguf import read_gguf
from tampu.server.options import ServerOptions
from tampu.store import Digest, ModelName, Store
from tampu.store.manifests import CONFIG_TYPE
from tests.server.conftest import Site

CONFIG = b'{"model_format":"gguf"}'
HEAD = described(CONFIG, CONFIG_TYPE)


@pytest.fixture
def own_site(tmp_path: Path) -> Site:
    return Site(tmp_path / "store", FakeStart(), ServerOptions(model=LoadOptions(context=1024)))


@pytest.fixture
def store(own_site: Site) -> Store:
    return Store(own_site.folder)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = write_gguf(tmp_path_factory.mktemp("weights") / "m.gguf")
    return path.read_bytes()


@pytest.fixture
def registry(weights: bytes) -> Iterator[RogueRegistry]:
    content = manifest([described(weights)], HEAD)
    with RogueRegistry(content, (weights, CONFIG)) as registry:
        yield registry


def pulling(registry: RogueRegistry, **more: bool) -> tuple[str, str, dict[str, Any]]:
    body = {"model": f"{registry.host}/a/m", "insecure": True, **more}
    return "POST", "/api/pull", {"json": body}


LIES = {  # what else a registry may do: tests/store/test_rogue_registry.py
    "no manifest": Answer(404),
    "no JSON": Answer(body=b"<html>"),
    "a digest up the tree": Answer(
        body=manifest([described(b"x") | {"digest": "sha256:../../../etc/passwd"}], HEAD)
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_rogue_registry_is_502_with_one_line(
    own_site: Site, store: Store, registry: RogueRegistry, lie: str
) -> None:
    registry.before = lambda _: LIES[lie]
    before = files(store)
    whole, streamed = own_site.call(pulling(registry, stream=False), pulling(registry))
    assert whole.status_code == 502
    told = whole.json()["error"]
    assert told.isprintable()
    assert str(own_site.folder) not in told
    assert lines_of(streamed)[-1] == {"error": told}
    assert files(store) == before


BAD_NAMES = [
    "", "../x", "a//b", "a:b:c", "a\0b", "a b", "%2e%2e%2f", "a\\b", "-m", ".m", "m" * 81,
    "h" * 351 + "/a/b", "user:pass@host/a/b", "ｍ", "m\n", "a/b/c/d/e", "[::1]/a/b",
]  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
def test_invalid_model_name_is_400_on_every_route_with_a_name(
    own_site: Site, store: Store, name: str
) -> None:
    before = files(store)
    answers = own_site.call(
        *(
            ("POST", path, {"json": {"model": name, "from": "m", "stream": False}})
            for path in ("/api/pull", "/api/push", "/api/create")
        ),
        ("POST", "/api/copy", {"json": {"source": name, "destination": "m"}}),
        ("POST", "/api/copy", {"json": {"source": "m", "destination": name}}),
        ("DELETE", "/api/delete", {"json": {"model": name}}),
    )
    assert [answer.status_code for answer in answers] == [400, 400, 400, 400, 400, 400]
    assert files(store) == before


@pytest.mark.parametrize("host", ["169.254.169.254", "localhost:1", "10.1.2.3", "0x7f000001"])
def test_private_addresses_are_not_contacted_unless_allowed(own_site: Site, host: str) -> None:
    [answer] = own_site.call(
        ("POST", "/api/pull", {"json": {"model": f"{host}/a/m", "stream": False}})
    )
    assert answer.status_code == 502
    assert "private network" in answer.json()["error"]


async def test_concurrent_pulls_download_a_model_once(
    own_site: Site, registry: RogueRegistry, weights: bytes
) -> None:
    registry.before = lambda request: slow(ranged(request, weights), request, weights)

    async with own_site.started() as client:
        body = {"model": f"{registry.host}/a/m", "insecure": True, "stream": False}
        answers = await asyncio.gather(
            *(client.post("/api/pull", json=body, timeout=9) for _ in range(20))
        )
        assert {answer.status_code for answer in answers} == {200}
    of_weights = [r for r in registry.requests if r.path.endswith(str(Digest.of(weights)))]
    assert len(of_weights) == 1


def slow(answer: Answer, request: Request, weights: bytes) -> Answer | None:
    if not request.path.endswith(str(Digest.of(weights))):
        return None
    answer.bytes_per_second = 10_000
    return answer


def test_disconnecting_stops_a_pull_and_the_next_pull_resumes_it(
    own_site: Site, store: Store
) -> None:
    weights = random.Random(3).randbytes(6 << 20)
    with RogueRegistry(manifest([described(weights)], HEAD), (weights, CONFIG)) as registry:

        def crawl(request: Any) -> Answer | None:
            if not request.path.endswith(str(Digest.of(weights))):
                return None
            answer = ranged(request, weights)
            answer.bytes_per_second = 2 << 20
            return answer

        registry.before = crawl

        async def test(client: httpx.AsyncClient) -> None:
            asked = client.post(pulling(registry)[1], **pulling(registry)[2])
            task = asyncio.create_task(asked)
            await until(lambda: registry.sent > 200_000, "weights come")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        own_site.run(test)
        assert names(store) == []
        assert not list(store.layout.leases.iterdir())
        wait_until(lambda: not registry.connections, "the pull's connections end")
        digest = Digest.of(weights)
        done = done_ranges(store, digest)
        assert done
        earlier = len(registry.requests)
        registry.before = lambda _: None
        assert own_site.call(pulling(registry, stream=False))[0].status_code == 200
        again = [r for r in registry.requests[earlier:] if r.path.endswith(str(digest))]
        assert_only_missing(again, done)


@pytest.mark.parametrize("status", [403, 413, 500])
def test_refused_push_is_502_and_uploads_no_manifest(
    own_site: Site, registry: RogueRegistry, status: int
) -> None:
    own_site.call(pulling(registry))
    registry.before = lambda request: (
        Answer(404) if request.method == "HEAD" else Answer(status, body=b'{"errors":[]}')
    )
    body = {"model": f"{registry.host}/a/m", "insecure": True, "stream": False}
    [answer] = own_site.call(("POST", "/api/push", {"json": body}))
    assert answer.status_code == 502
    assert str(status) in answer.json()["error"]
    assert not any(request.method == "PUT" for request in registry.requests)


def test_create_quantizes_weights(own_site: Site, tmp_path: Path, store: Store) -> None:
    tiny = Tiny(embedding=256, feed_forward=512, head_dim=64)
    content = write_tiny(tmp_path / "m.gguf", tiny).read_bytes()
    digest = "sha256:" + hashlib.sha256(content).hexdigest()
    body = {"model": "small", "files": {"m.gguf": digest}, "quantize": "q4_K_M"}
    _, made, refused = own_site.call(
        ("POST", f"/api/blobs/{digest}", {"content": content}),
        ("POST", "/api/create", {"json": body}),
        ("POST", "/api/create", {"json": {"model": "x", "from": "small", "quantize": "Q8_0"}}),
    )
    assert lines_of(made)[-1] == {"status": "success"}
    assert any("quantizing F32 model to Q4_K_M" in line["status"] for line in lines_of(made))
    path = store.model(ModelName.parse("small")).model_path
    assert read_gguf(path).tensors["blk.0.attn_q.weight"].type.name == "Q4_K"
    assert refused.status_code == 400 or "error" in lines_of(refused)[-1]
