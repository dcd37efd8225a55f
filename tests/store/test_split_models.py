"""Models in several files in a store: made, given, listed, removed, and run by their names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.split_models import split_file
from support.tiny_model import Tiny, write_tiny

from tampu.engine.engine import Engine
from tampu.errors import ModelNotFoundError, RequestError, StoreError
from tampu.ml.gguf import read_gguf
from tampu.store import Media, ModelName
from tampu.store.create import CreateSpec, create
from tampu.store.library import Library
from tampu.store.model import StoredModel
from tampu.store.modelfile import parse_modelfile
from tampu.store.stored_models import StoredModels

NAME = ModelName.parse("mine")
PROMPT = [5, 9, 3, 7, 11]
WIDE = Tiny(embedding=256, feed_forward=512, head_dim=64, layers=2)


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    monkeypatch.setenv("TAMPU_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "none"))
    return Library(tmp_path / "models")


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "whole.gguf", WIDE)


@pytest.fixture
def parts(whole: Path, tmp_path: Path) -> list[Path]:
    return split_file(whole, tmp_path / "m.gguf", 8)


def made(library: Library, text: str, folder: Path, **more: object) -> StoredModel:
    spec = CreateSpec(modelfile=parse_modelfile(text), folder=folder, **more)  # type: ignore[arg-type]
    return create(library, NAME, spec)


def logits(model: object) -> np.ndarray:
    with Engine.load(str(model), context=64, threads=1) as engine:
        return engine.logits(PROMPT)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_model_created_from_shards_runs(
    library: Library, whole: Path, parts: list[Path], tmp_path: Path, in_place: bool
) -> None:
    model = made(library, f"FROM {parts[0].name}\nSYSTEM x", tmp_path, in_place=in_place)
    layers = model.manifest.of_kind(Media.MODEL)
    assert [layer.size for layer in layers] == [path.stat().st_size for path in parts]
    assert model.model_path == model.model_path  # the links that are there are taken again
    assert read_gguf(model.model_path).tensors.keys() == read_gguf(whole).tensors.keys()
    np.testing.assert_array_equal(logits("mine"), logits(whole))


def test_a_derived_model_keeps_the_shards_and_a_quantized_one_is_one_file(
    library: Library, parts: list[Path], tmp_path: Path
) -> None:
    first = made(library, f"FROM {parts[0].name}", tmp_path)
    again = made(library, "FROM mine\nSYSTEM Short.", tmp_path)
    assert again.manifest.of_kind(Media.MODEL) == first.manifest.of_kind(Media.MODEL)
    small = made(library, "FROM mine", tmp_path, quantize="Q8_0")
    assert len(small.manifest.of_kind(Media.MODEL)) == 1
    assert "split.count" not in read_gguf(small.model_path).metadata
    assert small.config.file_type == "Q8_0"


def test_uploaded_shards_are_one_model(library: Library, parts: list[Path]) -> None:
    assert library.store
    with library.store.lease() as lease:
        files = {
            path.name: library.store.blobs.put(path.read_bytes(), lease) for path in parts[::-1]
        }
        model = create(library, NAME, CreateSpec(files=files))
    sizes = [layer.size for layer in model.manifest.of_kind(Media.MODEL)]
    assert sizes == [path.stat().st_size for path in parts]


def test_the_links_are_removed_with_the_model(
    library: Library, parts: list[Path], tmp_path: Path
) -> None:
    model = made(library, f"FROM {parts[0].name}", tmp_path)
    folder = model.model_path.parent
    assert len(list(folder.iterdir())) == len(parts)
    assert library.store
    library.store.delete(NAME)
    assert not folder.exists()
    assert list(library.store.layout.blobs.iterdir()) == []


def test_missing_or_wrong_links_are_recreated(
    library: Library, parts: list[Path], tmp_path: Path
) -> None:
    model = made(library, f"FROM {parts[0].name}", tmp_path)
    first, second, *_ = sorted(model.model_path.parent.iterdir())
    first.unlink()
    second.unlink()
    second.symlink_to(tmp_path / "elsewhere")
    assert len(read_gguf(model.model_path).parts) == len(parts)


def test_no_links_are_created_in_another_programs_store(
    library: Library, parts: list[Path], tmp_path: Path
) -> None:
    made(library, f"FROM {parts[0].name}", tmp_path)
    assert library.store
    (library.store.layout.ours).rename(tmp_path / "ours")
    theirs = StoredModels(library.store.root)
    with pytest.raises(StoreError, match="split model"):
        _ = theirs.model(NAME).model_path
    assert not theirs.layout.ours.exists()


def test_shards_in_the_model_folder_are_one_model(library: Library, whole: Path) -> None:
    folder = library.store.root if library.store else Path()
    folder.mkdir(exist_ok=True)
    parts = split_file(whole, folder / "big.gguf", 8)
    (model,) = library.listing().models
    assert (model.name, model.files) == ("big:latest", tuple(parts))
    assert model.size_bytes == sum(path.stat().st_size for path in parts)
    np.testing.assert_array_equal(logits("big"), logits(whole))
    parts[1].unlink()
    with pytest.raises(ModelNotFoundError, match=f"missing: {parts[1].name}"):
        logits("big")


def test_a_single_shard_or_shards_of_two_models_are_refused(
    library: Library, whole: Path, parts: list[Path], tmp_path: Path
) -> None:
    with pytest.raises(RequestError, match="more than one source"):
        made(library, f"FROM {parts[0].name}\nFROM {whole.name}", tmp_path)
