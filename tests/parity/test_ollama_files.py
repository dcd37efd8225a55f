"""Models in the layout of Ollama's published files answer as in tampu's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.laboratory import Laboratory, tokens
from support.ollama_files import PUBLISHED, Published, publish
from support.seeing import Seer, picture
from support.sounds import sound

from tampu.engine.engine import Engine
from tampu.ml import Backend

pytestmark = pytest.mark.parity

SEEING = [
    "deepseek_ocr", "gemma3_vision", "mistral3_vision", "llama4_vision", "qwen25vl", "qwen3vl",
    "qwen35_seeing",
]  # fmt: skip


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name not in SEEING])
def test_a_published_file_gives_the_same_logits(
    laboratory: Laboratory, tmp_path: Path, name: str
) -> None:
    ours = laboratory.file(name)
    theirs = publish(ours, PUBLISHED[name], tmp_path / "published.gguf")
    logits = []
    for path in (ours, theirs):
        with Engine.load(path, context=128, threads=1, cache_type="f32") as engine:
            logits.append(engine.logits(tokens(60)))
    np.testing.assert_allclose(logits[1], logits[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SEEING)
def test_a_published_file_sees_the_same(
    laboratory: Laboratory, backend: Backend, tmp_path: Path, name: str
) -> None:
    ours = laboratory.file(name)
    theirs = publish(ours, PUBLISHED[name], tmp_path / "published.gguf")
    parts: list[list[int] | np.ndarray] = [[1, 33, 34], picture(100, 150), [11, 57, 200]]
    found = []
    for path in (ours, theirs):
        seer = Seer(backend, path)
        try:
            found.append(seer.logits(parts))
        finally:
            seer.close()
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4, atol=1e-4)


def test_a_published_file_hears_the_same(laboratory: Laboratory, tmp_path: Path) -> None:
    name = "gemma4_small_hearing"
    ours = laboratory.file(name)
    theirs = publish(ours, PUBLISHED[name], tmp_path / "published.gguf")
    found = []
    for path in (ours, theirs):
        with Engine.load(path, context=128, threads=1, cache_type="f32") as engine:
            prompt = [1, engine.prepare_file(sound(1.3)), 57, 200, 310]
            found.append(engine.logits(prompt))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4, atol=1e-4)


def test_a_published_encoder_gives_the_same_embeddings(
    laboratory: Laboratory, tmp_path: Path
) -> None:
    ours = laboratory.file("embedding_gemma")
    names = {r"^dense_2\.": "dense.0.", r"^dense_3\.": "dense.1.", r"^output_norm\.": "norm."}
    layout = Published("gemma3", names=names, keys={"attention.causal": False})
    theirs = publish(ours, layout, tmp_path / "published.gguf")
    found = []
    for path in (ours, theirs):
        with Engine.load(path, context=128, threads=1, cache_type="f32") as engine:
            found.append(engine.embed([tokens(60), tokens(7)]))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4, atol=1e-5)
