"""Pulling from Hugging Face's hub, played by a server of our own on this machine."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from support.local_http import Answer, LocalServer, Request
from support.registries import ranged
from support.split_models import split_file
from support.stores import files
from support.tiny_model import write_tiny

from tampu.errors import RegistryError
from tampu.ml.gguf import read_gguf
from tampu.store import Digest, Media, ModelName, Store
from tampu.store.model import StoredModel
from tampu.store.registry.options import RemoteOptions
from tampu.store.registry.pull import pull

Q4 = random.Random(4).randbytes(5_000_000)
PARTS = [random.Random(n).randbytes(1_000_000 + n) for n in range(3)]
EYES = random.Random(9).randbytes(700_000)
LARGE = {
    "m-Q4_K_M.gguf": Q4,
    "Q8_0/m-Q8_0-00001-of-00003.gguf": PARTS[0],
    "Q8_0/m-Q8_0-00002-of-00003.gguf": PARTS[1],
    "Q8_0/m-Q8_0-00003-of-00003.gguf": PARTS[2],
    "mmproj-m-f16.gguf": EYES,
}
SMALL = {"README.md": b"# m", "system": b"You are a llama.", "params": b'{"temperature":0.5}'}


class Hub(LocalServer):
    """One repository, runa/m-GGUF, whose large files lie in a storage of their own."""

    def __init__(self) -> None:
        super().__init__(self.serve)
        self.storage = LocalServer(self.store)
        self.token: Any = None
        self.files = LARGE | SMALL
        self.page = 3

    def __enter__(self) -> Self:
        self.storage.__enter__()
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self.storage.__exit__(*error)

    def store(self, request: Request) -> Answer:
        return ranged(request, self.files[request.query["file"]])

    def entry(self, path: str) -> dict[str, Any]:
        content = self.files[path]
        git = hashlib.sha1(content, usedforsecurity=False).hexdigest()
        found = {"type": "file", "oid": git, "size": len(content), "path": path}
        if path in LARGE:
            found["lfs"] = {"oid": Digest.of(content).hex, "size": len(content), "pointerSize": 134}
        return found

    def serve(self, request: Request) -> Answer:
        if self.token and request.headers.get("authorization") != f"Bearer {self.token}":
            return Answer(401, {"WWW-Authenticate": 'Bearer realm="Authentication required"'})
        if request.path == "/api/models/runa/m-GGUF/tree/main":
            return self.tree(int(request.query.get("cursor", 0)))
        file = request.path.removeprefix("/runa/m-GGUF/resolve/main/")
        if file in LARGE:
            return Answer(302, {"Location": f"{self.storage.url}/s?file={file}"})
        return Answer(body=self.files[file]) if file in self.files else Answer(404)

    def tree(self, start: int) -> Answer:
        entries = [{"type": "directory", "path": "Q8_0", "oid": "0"}, *map(self.entry, self.files)]
        shown = entries[start : start + self.page]
        end = start + self.page
        link = f'<{self.url}/api/models/runa/m-GGUF/tree/main?cursor={end}>; rel="next"'
        headers = {"Link": link} if len(entries) > end else {}
        return Answer(200, headers, json.dumps(shown).encode())


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as hub:
        yield hub


def fetch(store: Store, hub: Hub, text: str, **changes: Any) -> StoredModel:
    options = RemoteOptions(hub=hub.url, is_insecure=True, retry_delays_s=(0.0,), **changes)
    name = ModelName.parse(text)
    list(pull(store, name, options))
    return store.model(name)


def test_a_quantization_is_pulled_with_its_projector_and_settings(store: Store, hub: Hub) -> None:
    model = fetch(store, hub, "hf.co/runa/m-GGUF:q4_k_m")
    assert model.model_path.read_bytes() == Q4
    assert [path.read_bytes() for path in model.paths(Media.PROJECTOR)] == [EYES]
    assert (model.system, model.parameters) == ("You are a llama.", {"temperature": 0.5})
    assert (model.config.model_format, model.config.file_type) == ("gguf", "Q4_K_M")
    assert all(store.blobs.verify(blob.digest) for blob in model.manifest.blobs())


def test_a_split_model_is_pulled_completely(store: Store, hub: Hub) -> None:
    model = fetch(store, hub, "huggingface.co/runa/m-GGUF:Q8_0")
    assert [path.read_bytes() for path in model.paths(Media.MODEL)] == PARTS
    assert [layer.name for layer in model.manifest.of_kind(Media.MODEL)] == [
        f"m-Q8_0-0000{n}-of-00003.gguf" for n in (1, 2, 3)
    ]


def test_a_split_model_is_read_as_one(
    store: Store, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = split_file(write_tiny(tmp_path / "tiny.gguf"), tmp_path / "m-F32.gguf", 8)
    hub.files = {path.name: path.read_bytes() for path in parts}
    monkeypatch.setitem(globals(), "LARGE", hub.files)
    model = fetch(store, hub, "hf.co/runa/m-GGUF:F32")
    assert len(parts) == len(read_gguf(model.model_path).parts) == 3
    assert read_gguf(model.model_path).tensors.keys() == read_gguf(parts[0]).tensors.keys()


def test_without_a_tag_the_preferred_variant_is_chosen(store: Store, hub: Hub) -> None:
    assert fetch(store, hub, "hf.co/runa/m-GGUF").model_path.read_bytes() == Q4


def test_large_files_are_requested_in_ranges_from_the_storage(store: Store, hub: Hub) -> None:
    fetch(store, hub, "hf.co/runa/m-GGUF")
    spans = [request.range for request in hub.storage.requests if request.query["file"][0] == "m"]
    assert sum(end - start for start, end in filter(None, spans)) == len(Q4)


def test_the_token_is_sent_to_the_hub_but_not_to_the_storage(store: Store, hub: Hub) -> None:
    hub.token = "s3cret"
    with pytest.raises(RegistryError, match="is private or does not exist: set HF_TOKEN"):
        fetch(store, hub, "hf.co/runa/m-GGUF")
    fetch(store, hub, "hf.co/runa/m-GGUF", hub_token="s3cret")
    assert hub.storage.requests
    assert not any("authorization" in request.headers for request in hub.storage.requests)


def test_a_missing_variant_is_an_error_that_lists_the_others(store: Store, hub: Hub) -> None:
    with pytest.raises(RegistryError, match=r"has no Q2_K; available: m-Q4_K_M|Q8_0, Q4_K_M"):
        fetch(store, hub, "hf.co/runa/m-GGUF:Q2_K")
    with pytest.raises(RegistryError, match="file does not exist"):
        fetch(store, hub, "hf.co/runa/other")
    hub.files = {"README.md": b""}
    with pytest.raises(RegistryError, match=r"it has no \.gguf file"):
        fetch(store, hub, "hf.co/runa/m-GGUF")


@pytest.mark.parametrize(
    "lie",
    [
        {"lfs": {"oid": "../../etc/passwd", "size": 5}},
        {"lfs": {"oid": "a" * 64, "size": -1}},
        {"lfs": {"oid": "a" * 64, "size": "5"}},
        {"lfs": {"oid": "a" * 64, "size": len(Q4)}},
        {"path": 7},
    ],
)
def test_inconsistent_responses_are_refused_and_no_model_is_stored(
    store: Store, hub: Hub, lie: dict[str, Any]
) -> None:
    entry = hub.entry
    hub.entry = lambda path: entry(path) | (lie if path == "m-Q4_K_M.gguf" else {})
    with pytest.raises(RegistryError):
        fetch(store, hub, "hf.co/runa/m-GGUF:Q4_K_M")
    assert store.listing().models == []
    assert not any("sha256-aaaa" in path for path in files(store) if path.startswith("blobs"))


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[[]]", b"<html>", b'[{"type":"\xf3"}]', b"[" * 10_000_000]
)
def test_an_invalid_file_list_is_refused(store: Store, hub: Hub, body: bytes) -> None:
    hub.answer = lambda _: Answer(body=body)
    with pytest.raises(RegistryError):
        fetch(store, hub, "hf.co/runa/m-GGUF")


def test_an_endless_file_list_is_refused(store: Store, hub: Hub) -> None:
    hub.answer = lambda _: Answer(200, {"Link": f'<{hub.url}/x>; rel="next"'}, b"[]")
    with pytest.raises(RegistryError, match="too many files"):
        fetch(store, hub, "hf.co/runa/m-GGUF")
    assert len(hub.requests) == 20
