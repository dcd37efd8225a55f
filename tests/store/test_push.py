"""Pushing to a registry that has the bytes sent elsewhere, as Ollama's has, or that refuses."""

from __future__ import annotations

import hashlib
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from support.local_http import Answer, LocalServer, Request
from support.stores import add_model

from tampu.errors import ModelNotFoundError, RegistryError
from tampu.store import Digest, Manifest, ModelName, Store
from tampu.store.manifests import FILE_PATH, Descriptor, Media, read_manifest
from tampu.store.registry import push as push_module
from tampu.store.registry.options import RemoteOptions
from tampu.store.registry.push import push

MB = 1 << 20
WEIGHTS = random.Random(3).randbytes(3 * MB + 5)


class OllamasRegistry(LocalServer):
    """Has uploads put into a storage, and checks the hash of the chunks' hashes at the end."""

    def __init__(self) -> None:
        super().__init__(self.serve)
        self.storage = LocalServer(self.store)
        self.chunks: list[bytes] = []
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, bytes] = {}
        self.refusal: Answer | None = None
        self.busy = 0

    def __enter__(self) -> Self:
        self.storage.__enter__()
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self.storage.__exit__(*error)

    def store(self, request: Request) -> Answer:
        self.chunks.append(request.body)
        return Answer(200)

    def serve(self, request: Request) -> Answer:
        if self.refusal is not None and request.method != "HEAD":
            return self.refusal
        if request.method == "HEAD":
            there = request.path.rpartition("/")[2] in self.blobs
            return Answer(200 if there else 404)
        if request.method == "POST":
            self.chunks = []
            return Answer(202, {"Docker-Upload-Location": f"{self.url}/upload/0"})
        if request.method == "PATCH":
            if self.busy:
                self.busy -= 1
                return Answer(503)
            assert request.headers["x-redirect-uploads"] == "1"
            start = request.headers["content-range"].partition("-")[0]
            assert int(start) == sum(map(len, self.chunks))
            number = len(self.chunks) + 1
            headers = {
                "Location": f"{self.storage.url}/part/{number}?signature=x",
                "Docker-Upload-Location": f"{self.url}/upload/{number}",
            }
            return Answer(307, headers)
        if "/manifests/" in request.path:
            self.manifests[request.path] = request.body
            return Answer(201)
        return self.finish(request)

    def finish(self, request: Request) -> Answer:
        content = b"".join(self.chunks)
        if self.chunks:
            hashes = b"".join(hashlib.md5(c, usedforsecurity=False).digest() for c in self.chunks)
            joined = hashlib.md5(hashes, usedforsecurity=False).hexdigest()
            assert request.query["etag"] == f"{joined}-{len(self.chunks)}"
        digest = request.query["digest"]
        if str(Digest.of(content)) != digest:
            return Answer(400)
        self.blobs[digest] = content
        return Answer(201)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[OllamasRegistry]:
    for size in ("_FIRST_CHUNK_BYTES", "_MIN_CHUNK_BYTES", "_MAX_CHUNK_BYTES"):
        monkeypatch.setattr(push_module, size, MB)
    with OllamasRegistry() as registry:
        yield registry


def give(store: Store, name: str) -> list[Any]:
    options = RemoteOptions(is_insecure=True, retry_delays_s=(0.0,))
    return list(push(store, ModelName.parse(name), options))


def test_chunks_are_sent_to_the_storage_without_the_token(
    store: Store, registry: OllamasRegistry
) -> None:
    name = f"{registry.host}/a/m:1b"
    model = add_model(store, name, model=WEIGHTS)
    told = give(store, name)
    assert told[-1].status == "success"
    assert registry.blobs[str(Digest.of(WEIGHTS))] == WEIGHTS
    assert registry.manifests == {"/v2/a/m/manifests/1b": model.content}
    assert not any("authorization" in request.headers for request in registry.storage.requests)


def test_a_failed_upload_to_storage_starts_again(store: Store, registry: OllamasRegistry) -> None:
    name = f"{registry.host}/a/m"
    add_model(store, name, model=WEIGHTS)
    registry.busy = 3
    give(store, name)
    assert registry.blobs[str(Digest.of(WEIGHTS))] == WEIGHTS


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        (Answer(413, body=b'{"errors":[{"message":"too large"}]}'), "413: too large"),
        (Answer(403, body=b"no"), "403: no"),
        (Answer(500, body=b"broken"), "500: broken"),
        (Answer(401, {"WWW-Authenticate": "Negotiate"}), "unsupported kind of sign-in"),
        (Answer(401, {"WWW-Authenticate": "Basic realm=x"}), "requires a name and a password"),
        (Answer(202, {}), "sent no upload location"),
        (Answer(202, {"Location": "http://127.0.0.1:1/elsewhere"}), "to another host"),
        (Answer(202, {"Location": "file:///x"}), "to another host"),
    ],
)
def test_a_refused_push_is_an_error_and_leaves_no_manifest(
    store: Store, registry: OllamasRegistry, refusal: Answer, told: str
) -> None:
    name = f"{registry.host}/a/m"
    add_model(store, name, model=WEIGHTS)
    registry.refusal = refusal
    with pytest.raises(RegistryError, match=told):
        give(store, name)
    assert registry.manifests == {}


def test_a_local_file_is_pushed_without_its_path(
    store: Store, registry: OllamasRegistry, tmp_path: Path
) -> None:
    file = tmp_path / "weights.gguf"
    file.write_bytes(WEIGHTS)
    base = add_model(store, "base")
    layer = Descriptor(
        Media.MODEL, Digest.of(WEIGHTS), len(WEIGHTS), annotations={FILE_PATH: str(file)}
    )
    name = f"{registry.host}/a/m"
    manifest = Manifest(config=base.manifest.config, layers=[layer])
    store.write(ModelName.parse(name), manifest)
    give(store, name)
    (content,) = registry.manifests.values()
    assert read_manifest(content).layers[0].annotations == {}
    assert str(tmp_path).encode() not in content


def test_a_missing_model_cannot_be_pushed(store: Store, registry: OllamasRegistry) -> None:
    with pytest.raises(ModelNotFoundError):
        give(store, f"{registry.host}/a/nothing")
    assert registry.requests == []


def test_a_host_without_an_address_is_looked_up_twice(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def resolve(host: str, *_: Any, **__: Any) -> None:
        asked.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr("tampu.store.registry.transport.socket.getaddrinfo", resolve)
    add_model(store, "nowhere.example/a/m:1b", model=WEIGHTS)
    with pytest.raises(RegistryError, match=r"cannot reach nowhere\.example"):
        give(store, "nowhere.example/a/m:1b")
    assert asked == ["nowhere.example"] * 2
