"""Layers of multi-token prediction: bound where a file has them, and equal to transformers'."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.checkpoints import RECIPES
from support.graphs import floats
from support.laboratory import Laboratory, relative_error, tokens
from support.mtp_files import with_mtp_layer
from support.ollama_files import PUBLISHED, publish
from support.seeing import Beginning, OneSequence, Whole

from tampu.convert import convert
from tampu.engine.engine import Engine
from tampu.gguf_compat import read_model
from tampu.ml import Backend, GGMLType, Weights
from tampu.models import bind_model
from tampu.nn import LayerShape, MTPLayer
from tampu.nn.model import cache_parts

pytestmark = [pytest.mark.parity, pytest.mark.slow]

NAMES = ["qwen35", "qwen35moe", "qwen3next", "glm4moe", "deepseek2_v3", "deepseek2_glm"]
COUNT = 20


@pytest.mark.parametrize(
    ("name", "is_published"),
    [*((name, False) for name in NAMES), ("qwen35", True), ("qwen35moe", True)],
)
def test_the_hidden_states_of_a_predictor(
    laboratory: Laboratory, backend: Backend, tmp_path: Path, name: str, is_published: bool
) -> None:
    path, made = with_mtp_layer(laboratory, name, tmp_path)
    if is_published:  # by Ollama
        path = publish(path, PUBLISHED[name], tmp_path / "published.gguf")
    width = RECIPES[name].values["hidden_size"]
    embeddings, hidden = floats(COUNT, width), floats(COUNT, width, seed=1)
    ours = ours_of(backend, path, embeddings, hidden)
    model: Any = laboratory.reference(name)
    places = torch.arange(COUNT)[None]
    seen = torch.full((COUNT, COUNT), -torch.inf).triu(1)[None, None]
    with torch.no_grad():
        expected = made(
            torch.from_numpy(embeddings)[None],
            torch.from_numpy(hidden)[None],
            model.model.rotary_emb(torch.from_numpy(hidden)[None], places),
            seen,
            places,
            None,
        )
    assert relative_error(ours, expected[0].numpy()) < 1e-5


def ours_of(backend: Backend, path: Path, embeddings: Any, hidden: Any) -> Any:
    with Weights(read_model(path)) as weights:
        model = bind_model(weights, predicts=True)
        block = model.mtp
        assert isinstance(block, MTPLayer)
        assert block.output_norm
        weights.load(backend)
        context = backend.context()
        rows, *_ = cache_parts(model.cache_shapes()[-1])
        assert isinstance(rows, LayerShape)
        positions = np.arange(COUNT, dtype=np.int32)
        if model.positions_per_token > 1:
            positions = np.tile(positions, (model.positions_per_token, 1))
        mask = np.where(np.tri(COUNT, dtype=np.bool_), 0, -np.inf).astype(np.float16)
        data = {
            "embeddings": embeddings,
            "hidden": hidden,
            "positions": positions,
            "mask": mask,
        }
        kinds = [GGMLType.F32, GGMLType.F32, GGMLType.I32, GGMLType.F16]
        inputs = {
            key: context.input(key, value.shape, kind)
            for (key, value), kind in zip(data.items(), kinds, strict=True)
        }
        found = block(
            inputs["embeddings"],
            inputs["hidden"],
            OneSequence(Whole(inputs["mask"], rows.latent_rank), Beginning(())),
            rotate=partial(model.options.rope(), positions=inputs["positions"]),
            o=model.options,
        )
        found = block.output_norm(found, model.options.epsilon)
        given = [(tensor, data[key]) for key, tensor in inputs.items()]
        (result,) = backend.compute(context, given, [context.output(found)]).outputs
        context.close()
        return np.array(result)


def load(path: Path) -> Engine:
    return Engine.load(path, context=256, threads=1, cache_type="f32", flash_attention=False)


@pytest.mark.parametrize("name", NAMES)
def test_mtp_layers_do_not_change_the_logits(
    laboratory: Laboratory, tmp_path: Path, name: str
) -> None:
    path, _ = with_mtp_layer(laboratory, name, tmp_path)
    text = tokens(40)
    with load(path) as engine:
        found = engine.logits(text)
    with laboratory.engine(name) as engine:
        expected = engine.logits(text)
    np.testing.assert_array_equal(found, expected)


def test_a_file_that_states_mtp_layers_without_having_them_loads(
    laboratory: Laboratory, tmp_path: Path
) -> None:
    """As llama.cpp's converter writes it for a checkpoint that was trained further without them."""
    keys = {"qwen35.block_count": 5, "qwen35.nextn_predict_layers": 1}
    convert(laboratory.checkpoint("qwen35"), tmp_path / "model.gguf", "F32", metadata=keys)
    with load(tmp_path / "model.gguf") as engine:
        found = engine.logits(tokens(20))
    with laboratory.engine("qwen35") as engine:
        np.testing.assert_array_equal(found, engine.logits(tokens(20)))
