"""Manifests: read as they come from anywhere, refused when they cannot be true."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tampu.errors import StoreError
from tampu.store.manifests import (
    MANIFEST_TYPE,
    Descriptor,
    Manifest,
    Media,
    ModelConfig,
    encode_config,
    encode_manifest,
    read_config,
    read_manifest,
)
from tampu.store.names import Digest

A = "sha256:" + "a" * 64
B = "sha256:" + "b" * 64


def document(**changes: Any) -> dict[Any, Any]:
    return {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": {"mediaType": "c", "digest": A, "size": 2},
        "layers": [{"mediaType": Media.MODEL.value, "digest": B, "size": 5}],
    } | changes


def read(value: dict[Any, Any]) -> Manifest:
    return read_manifest(json.dumps(value).encode())


def layer(**changes: Any) -> dict[Any, Any]:
    return {"mediaType": "x", "digest": B, "size": 5} | changes


def test_a_manifest_is_read_and_written_in_the_registry_format() -> None:
    manifest = read(document())
    assert manifest.size_bytes == 7
    assert manifest.of_kind(Media.MODEL)[0].digest == Digest.parse(B)
    assert json.loads(encode_manifest(manifest)) == document()


def test_unknown_fields_are_ignored() -> None:
    extra = layer(mediaType="something/new", urls=["x"], **{"from": "base:latest"})
    manifest = read(document(layers=[extra], annotations={"a": "b"}))
    assert manifest.layers[0].source == "base:latest"
    assert manifest.of_kind(Media.MODEL) == []


def test_the_same_blob_may_be_named_twice() -> None:
    assert len(read(document(layers=[layer(), layer()])).layers) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"schemaVersion": 1}, {"config": None}, {"layers": None}, {"layers": {}},
        {"layers": [layer(digest="sha256:../../etc/passwd")]},
        {"layers": [layer(digest="sha256:" + "A" * 64)]}, {"layers": [layer(digest=7)]},
        {"layers": [layer(size=0)]}, {"layers": [layer(size=-1)]}, {"layers": [layer(size=2**63)]},
        {"layers": [layer(size=1.5)]}, {"layers": [layer(size="5")]},
        {"layers": [layer(), layer(size=6)]}, {"layers": [layer(digest=A)]},
        {"layers": [layer()] * 4097}, {"config": {"mediaType": "c", "digest": A, "size": 5 << 20}},
    ],
)  # fmt: skip
def test_impossible_values_are_refused(changes: Any) -> None:
    with pytest.raises(StoreError):
        read(document(**changes))


@pytest.mark.parametrize(
    "content",
    [
        b"", b"[]", b"null", b"{", b"\xff", b"[" * 100_000, b" " * (5 << 20), b'{"manifests":[]}',
        b'{"mediaType":"\xf3"}',
    ],
)  # fmt: skip
def test_invalid_manifests_are_refused(content: bytes) -> None:
    with pytest.raises(StoreError) as caught:
        read_manifest(content)
    assert "\n" not in str(caught.value)


@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_or_refused(content: bytes) -> None:
    for read_bytes in (read_manifest, read_config):
        try:
            read_bytes(content)
        except StoreError:
            continue


def test_a_config_keeps_its_fields() -> None:
    config = ModelConfig(model_format="gguf", model_type="7.6B", model_families=["llama"])
    assert read_config(encode_config(config)) == config
    assert json.loads(encode_config(config)) == {
        "model_format": "gguf", "model_type": "7.6B", "model_families": ["llama"],
    }  # fmt: skip
    assert read_config(b'{"rootfs":{"type":"layers"},"os":"linux"}').os == "linux"


def test_a_layer_may_reference_a_file_outside_the_store() -> None:
    layer = Descriptor(Media.MODEL, Digest.parse(B), 3, annotations={"k": "v"})
    manifest = Manifest(config=Descriptor("c", Digest.parse(A), 1), layers=[layer])
    assert read_manifest(encode_manifest(manifest)) == manifest
