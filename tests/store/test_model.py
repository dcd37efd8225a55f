"""What a stored model says of itself, and which files hold it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from support.stores import add_model

from tampu.errors import StoreError
from tampu.store import Descriptor, Manifest, Media, ModelConfig, ModelName, Store
from tampu.store.blobs import hash_file
from tampu.store.manifests import FILE_MODIFIED_NS, FILE_PATH
from tampu.store.model import StoredDefaults


def test_layers_are_read_on_demand(store: Store) -> None:
    model = add_model(
        store,
        "m",
        config=ModelConfig(model_type="7.6B"),
        projector=b"eyes",
        template=b"{{ .Prompt }}",
        system=b"You are a llama.",
        params={"temperature": 0.5, "stop": ["x"]},
        messages=[{"role": "user", "content": "hi"}],
        license=b"MIT",
    )
    assert model.model_path.read_bytes() == b"weights of m"
    assert [path.read_bytes() for path in model.paths(Media.PROJECTOR)] == [b"eyes"]
    assert model.template == "{{ .Prompt }}"
    assert model.system == "You are a llama."
    assert model.parameters == {"temperature": 0.5, "stop": ["x"]}
    assert [(message.role, message.content) for message in model.messages] == [("user", "hi")]
    assert model.licenses == ["MIT"]
    assert model.config.model_type == "7.6B"
    assert model.size_bytes == sum(blob.size for blob in model.manifest.blobs())


def test_missing_layers_are_empty(store: Store) -> None:
    model = add_model(store, "m")
    assert (model.template, model.system, model.licenses) == ("", "", [])
    assert (model.parameters, model.messages, model.paths(Media.ADAPTER)) == ({}, [], [])


def test_a_damaged_layer_is_an_error_with_the_models_name(store: Store) -> None:
    model = add_model(store, "m", params=b"[1]", messages=b"{}")
    with pytest.raises(StoreError, match="m:latest: a layer is damaged"):
        assert model.parameters
    with pytest.raises(StoreError, match="m:latest: a layer is damaged"):
        assert model.messages


def test_a_missing_or_truncated_file_is_an_error(store: Store) -> None:
    model = add_model(store, "m")
    path = model.model_path
    path.chmod(0o644)
    path.write_bytes(b"x")
    with pytest.raises(StoreError, match=r"m:latest: its file sha256-\w+ has 1 bytes, not 12"):
        assert model.model_path
    path.unlink()
    with pytest.raises(StoreError, match="is missing"):
        assert model.model_path


def test_a_model_without_weights_is_an_error(store: Store) -> None:
    model = add_model(store, "m")
    bare = store.write(ModelName.parse("bare"), Manifest(config=model.manifest.config, layers=[]))
    with pytest.raises(StoreError, match="has no GGUF file"):
        assert bare.model_path


def test_a_layer_may_be_a_file_outside_the_store(store: Store, tmp_path: Path) -> None:
    elsewhere = tmp_path / "weights.gguf"
    elsewhere.write_bytes(b"weights")
    base = add_model(store, "base")
    layer = Descriptor(
        Media.MODEL,
        hash_file(elsewhere),
        7,
        annotations={
            FILE_PATH: str(elsewhere),
            FILE_MODIFIED_NS: str(elsewhere.stat().st_mtime_ns),
        },
    )
    store.write(ModelName.parse("m"), Manifest(config=base.manifest.config, layers=[layer]))
    model = store.model(ModelName.parse("m"))
    assert model.model_path == elsewhere
    store.delete(ModelName.parse("base"))
    assert store.model(ModelName.parse("m")).config == base.config
    os.utime(elsewhere, (1, 1))
    with pytest.raises(StoreError, match=r"weights.gguf was changed: create the model again"):
        assert model.model_path
    store.delete(ModelName.parse("m"))
    assert elsewhere.is_file()


def test_a_conversation_starts_with_the_models_own_messages() -> None:
    own: dict[str, Any] = {"role": "assistant", "content": "hello"}
    defaults = StoredDefaults(system="be short", messages=(own,))
    system = {"role": "system", "content": "be short"}
    user, other = {"role": "user", "content": "x"}, {"role": "system", "content": "be long"}
    assert defaults.conversation([user]) == [system, own, user]
    assert defaults.conversation([]) == [system, own]
    assert defaults.conversation([other, user]) == [own, other, user]
    assert defaults.conversation([user, other]) == [system, own, user, other]
