"""The models of a node: by names and paths, and pulled once where that is wanted."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.registries import RogueRegistry, described, impatient, is_blob, manifest
from support.scripted import write_scripted

from tampu.cluster.catalog import find_on_node
from tampu.errors import ModelNotFoundError
from tampu.settings.settings import Settings
from tampu.store.manifests import CONFIG_TYPE

CONFIG = b'{"model_format":"gguf"}'


def settings_of(folder: Path) -> Settings:
    return Settings.from_environment({"HOME": str(folder), "TAMPU_MODELS": str(folder / "models")})


def test_a_model_that_the_node_lacks_is_pulled_once_for_all_replicas(tmp_path: Path) -> None:
    weights = write_scripted(tmp_path / "model.gguf", ["a", "b"]).read_bytes()
    told = manifest([described(weights)], described(CONFIG, CONFIG_TYPE))
    settings = settings_of(tmp_path)
    with RogueRegistry(told, (weights, CONFIG)) as registry, ThreadPoolExecutor(4) as threads:
        name = f"{registry.host}/a/m"
        with pytest.raises(ModelNotFoundError, match="not found"):
            find_on_node(name, settings)
        asked = [threads.submit(find_on_node, name, settings, impatient()) for _ in range(4)]
        found = {each.result().info.path for each in asked}
        assert [Path(each).read_bytes() for each in found] == [weights]
        of_weights = [each.path for each in registry.requests if is_blob(each)]
        assert len(of_weights) == len({*of_weights})
        find_on_node(name, settings)


def test_a_model_that_cannot_be_pulled_is_one_line(tmp_path: Path) -> None:
    with RogueRegistry() as registry, pytest.raises(ModelNotFoundError) as caught:
        find_on_node(f"{registry.host}/a/m", settings_of(tmp_path), impatient())
    assert "it cannot be pulled: " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_path_is_never_pulled(tmp_path: Path) -> None:
    path = write_scripted(tmp_path / "model.gguf", ["a", "b"])
    found = find_on_node(str(path), settings_of(tmp_path), impatient())
    assert Path(found.info.path) == path
