"""What `test_families` does not compare of GLM-4.5's architecture: Ling 2, and MTP layers."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from support.checkpoints import FAMILIES, Recipe
from support.checkpoints.making import make
from support.laboratory import answer, relative_error, tokens

from tampu.convert import convert
from tampu.engine.engine import Engine
from tampu.ml.gguf import read_gguf

pytestmark = pytest.mark.parity

Tensors = Mapping[str, torch.Tensor]

_GLM = FAMILIES["glm4moe"]
_NO_BIASES = {"attention_bias": False, "n_group": 4, "topk_group": 2, "rope_theta": 6e5}
_LINGS_NAMES = {
    "model.embed_tokens.": "model.word_embeddings.",
    "self_attn.o_proj.": "attention.dense.",
    "self_attn.q_norm.": "attention.query_layernorm.",
    "self_attn.k_norm.": "attention.key_layernorm.",
    "mlp.gate.e_score_correction_bias": "mlp.gate.expert_bias",
}
_LINGS_SETTINGS = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}


def as_ling(tensors: Tensors) -> dict[str, torch.Tensor]:
    """Return the tensors as Ling 2's checkpoints name them, three projections in one."""
    renamed: dict[str, torch.Tensor] = {}
    for name, value in tensors.items():
        if name.endswith(("k_proj.weight", "v_proj.weight")):
            continue
        if name.endswith("q_proj.weight"):
            parts = [tensors[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            name = re.sub(r"self_attn\.q_proj", "attention.query_key_value", name)
            value = torch.cat(parts)
        for theirs, lings in _LINGS_NAMES.items():
            name = name.replace(theirs, lings)
        renamed[name] = value
    return renamed


def with_mtp_layer(tensors: Tensors) -> dict[str, torch.Tensor]:
    """Return the tensors with a layer of multi-token prediction after the last."""
    width = tensors["model.norm.weight"].shape[0]
    last = {name: value for name, value in tensors.items() if name.startswith("model.layers.2.")}
    return {
        **tensors,
        **{name.replace(".2.", ".3.", 1): value.clone() for name, value in last.items()},
        "model.layers.3.eh_proj.weight": torch.ones(width, 2 * width),
        "model.layers.3.enorm.weight": torch.ones(width),
        "model.layers.3.hnorm.weight": torch.ones(width),
        "model.layers.3.shared_head.norm.weight": torch.ones(width),
    }


def published(
    folder: Path, recipe: Recipe, change: Callable[[Tensors], Tensors], **settings: object
) -> tuple[Path, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    """Convert a checkpoint with changed tensors; return the file and transformers' logits."""
    made, changed = folder / "made", folder / "changed"
    made.mkdir()
    make(recipe, made)
    model = transformers.Glm4MoeForCausalLM.from_pretrained(
        made, dtype=torch.float32, attn_implementation="eager"
    )
    shutil.copytree(made, changed)
    path = changed / "model.safetensors"
    save_file(dict(change(load_file(path))), path)
    config = json.loads((changed / "config.json").read_text()) | settings
    for theirs, lings in _LINGS_SETTINGS.items() if "num_experts" in settings else ():
        config[lings] = config.pop(theirs)
    (changed / "config.json").write_text(json.dumps(config))
    convert(changed, folder / "model.gguf", "F32")
    return folder / "model.gguf", answer(model.eval(), tokens())


def test_ling_2_is_glm_with_groups_of_experts(tmp_path: Path) -> None:
    recipe = replace(_GLM, values=_GLM.values | _NO_BIASES)
    name = {"architectures": ["BailingMoeV2ForCausalLM"], "num_experts": 8}
    path, expected = published(tmp_path, recipe, as_ling, **name)
    assert read_gguf(path).metadata.architecture == "bailingmoe2"
    with Engine.load(path, context=256, threads=1, cache_type="f32") as engine:
        ours = engine.logits(tokens())[:, : expected.shape[1]]
    assert relative_error(ours, expected) < 1e-5


def test_a_layer_of_multi_token_prediction_changes_no_logits(tmp_path: Path) -> None:
    path, expected = published(tmp_path, _GLM, with_mtp_layer)
    metadata = read_gguf(path).metadata
    assert metadata.integer("block_count") == 4
    assert metadata.integer("nextn_predict_layers") == 1
    with Engine.load(path, context=256, threads=1, cache_type="f32") as engine:
        ours = engine.logits(tokens())[:, : expected.shape[1]]
    assert relative_error(ours, expected) < 1e-5
