"""A model of a store comes with all its parts: from a checkpoint to an answer, by its name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.laboratory import Laboratory, tokens
from support.projectors import take_apart
from support.seeing import picture

from tampu.engine.engine import Engine
from tampu.store.catalog import Catalog
from tampu.store.create import CreateSpec, create
from tampu.store.library import Library
from tampu.store.modelfile import parse_modelfile
from tampu.store.names import ModelName

pytestmark = [pytest.mark.parity, pytest.mark.slow]


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    monkeypatch.setenv("TAMPU_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "none"))
    return Library(tmp_path / "models")


def made(library: Library, text: str, folder: Path, quantize: str | None = None) -> str:
    spec = CreateSpec(modelfile=parse_modelfile(text), folder=folder, quantize=quantize)
    return create(library, ModelName.parse("mine"), spec).name.short


def loaded(path: object) -> Engine:
    return Engine.load(str(path), context=128, threads=1, cache_type="f32")


def test_a_projector_comes_with_its_model(
    laboratory: Laboratory, library: Library, tmp_path: Path
) -> None:
    whole = laboratory.file("gemma3_vision")
    take_apart(whole, tmp_path / "t.gguf", tmp_path / "mmproj.gguf")
    name = made(library, "FROM t.gguf\nFROM mmproj.gguf\nSYSTEM x", tmp_path)
    assert "vision" in Catalog(library=library).describe(name).info.capabilities
    with loaded(whole) as one, loaded(name) as other:
        expected, found = (
            engine.logits([1, 33, engine.prepare_image(picture(100, 150)), 11, 57])
            for engine in (one, other)
        )
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral"])
def test_a_checkpoint_is_created_quantized_and_run_by_its_name(
    laboratory: Laboratory, library: Library, tmp_path: Path, name: str
) -> None:
    folder = laboratory.checkpoint(name)
    prompt = tokens(30)
    exact = made(library, f"FROM {folder}", tmp_path)
    with loaded(exact) as engine, loaded(laboratory.file(name)) as plain:
        expected = plain.logits(prompt)
        np.testing.assert_array_equal(engine.logits(prompt), expected)
    with loaded(made(library, "FROM mine", tmp_path, "Q8_0")) as engine:
        error = np.linalg.norm(engine.logits(prompt) - expected) / np.linalg.norm(expected)
    assert 0 < error < 0.1
