"""Names and paths of models."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from support.stores import add_model
from support.tiny_gguf import write_gguf

from tampu.chat.template_loader import PromptTemplate, usable
from tampu.errors import ModelFileError, ModelNotFoundError, StoreError
from tampu.ml.gguf import read_gguf
from tampu.store import ModelName, Store, catalog, library
from tampu.store.catalog import Catalog, resolve
from tampu.store.library import built_in_paths


@pytest.fixture(autouse=True)
def _no_other_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (catalog, library):
        monkeypatch.setattr(module, "built_in_paths", lambda: (tmp_path / "data/demo.gguf",))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def test_a_path_is_resolved_to_itself(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    assert resolve(str(path)) == path


def test_a_path_may_start_with_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = write_gguf(tmp_path / "m.gguf")
    assert resolve("~/m.gguf") == path


@pytest.mark.parametrize("name", ["m", "M", "m:latest"])
def test_a_name_is_looked_up_in_the_folder(tmp_path: Path, name: str) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    assert Catalog(tmp_path).find(name).path == path


def test_the_built_in_model_has_a_name(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    path = write_gguf(tmp_path / "data" / "demo.gguf")
    assert resolve("demo") == path
    assert Catalog(tmp_path / "nowhere").names() == ["demo"]


@pytest.mark.parametrize("name", ["x.gguf", "./x", "/a/x", "~/x"])
def test_a_missing_path_is_reported_as_a_path(name: str) -> None:
    with pytest.raises(ModelNotFoundError, match="no such file"):
        resolve(name)


def test_a_folder_is_not_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="is a folder"):
        resolve(str(tmp_path))


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    models = Catalog(tmp_path)
    before = models.describe("m")
    assert models.describe("m").info is before.info
    write_gguf(path, general__license="mit")
    os.utime(path, (1, 1))
    after = models.describe("m")
    assert after.modified_s == 1
    assert after.info is not before.info


@pytest.mark.parametrize("layers", [{}, {"projector": b"x"}])
def test_the_template_of_a_stores_model_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layers: dict[str, Any]
) -> None:
    read: list[str] = []

    def counted(text: str) -> PromptTemplate:
        read.append(text)
        return usable(text)

    monkeypatch.setattr(catalog, "usable", counted)
    weights = write_gguf(tmp_path / "m.gguf").read_bytes()
    store, models = Store(tmp_path / "ours"), Catalog(tmp_path / "ours")
    add_model(store, "one", model=weights, template=b"{{ .Prompt }}", **layers)
    add_model(store, "other", model=weights, template=b"{{ .Prompt }}!")
    for _ in range(3):
        first, second = models.describe("one"), models.describe("other")
        assert first.info.template == "{{ .Prompt }}"
        assert second.info.template == "{{ .Prompt }}!"
        assert ("vision" in first.info.capabilities) == bool(layers)
        assert models.describe("one").info is first.info
    assert read == ["{{ .Prompt }}", "{{ .Prompt }}!"]
    add_model(store, "one", model=weights, template=b"{{ .Prompt }}?", **layers)
    assert models.describe("one").info.template == "{{ .Prompt }}?"


def test_the_list_omits_damaged_files_and_is_sorted_by_time(tmp_path: Path) -> None:
    for age, name in ((300, "old"), (100, "new"), (200, "middle")):
        os.utime(write_gguf(tmp_path / f"{name}.gguf"), (1000 - age, 1000 - age))
    (tmp_path / "bad.gguf").write_bytes(b"nonsense")
    models = Catalog(tmp_path)
    assert [entry.name for entry in models.entries()] == ["new", "middle", "old"]
    with pytest.raises(ModelFileError):
        models.describe("bad")


def test_stores_in_the_settings_are_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAMPU_MODELS", str(tmp_path / "ours"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "theirs"))
    weights = write_gguf(tmp_path / "m.gguf").read_bytes()
    add_model(Store(tmp_path / "ours"), "runa/ours:1b", model=weights)
    add_model(Store(tmp_path / "theirs"), "theirs", model=weights)
    assert resolve("Runa/ours:1B").read_bytes() == weights
    assert resolve("theirs").is_relative_to(tmp_path / "theirs" / "blobs")
    with pytest.raises(ModelNotFoundError, match=r"there are: runa/ours:1b, theirs\)"):
        resolve("runa/ours")


def test_the_list_has_the_models_of_stores(tmp_path: Path) -> None:
    weights = write_gguf(tmp_path / "f.gguf").read_bytes()
    store = Store(tmp_path)
    stored = add_model(store, "m:1b", model=weights)
    add_model(store, "bad", model=b"nonsense")
    add_model(store, "empty")
    store.layout.manifest(ModelName.parse("empty")).write_bytes(b"")
    entries = {entry.name: entry for entry in Catalog(tmp_path).entries()}
    assert sorted(entries) == ["f", "m:1b"]
    assert entries["m:1b"].full_name == "m:1b"
    assert entries["f"].full_name == "f:latest"
    assert entries["m:1b"].model.id == stored.digest.hex
    assert entries["m:1b"].info.architecture == "llama"
    with pytest.raises(StoreError, match="empty"):
        Catalog(tmp_path).describe("empty")


def test_the_files_of_the_built_in_models_have_their_names() -> None:
    names = [read_gguf(path).metadata["general.name"] for path in built_in_paths()]
    assert names == [path.stem for path in built_in_paths()] == ["demo", "digits", "demo-draft"]


def test_the_built_in_models_are_small() -> None:
    assert all(path.stat().st_size < 2_000_000 for path in built_in_paths())
