"""Qwen3-VL: keys and names of llama.cpp's converter, image settings, experts in both layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from support import handmade_checkpoints as handmade

from tampu.convert import FAMILIES
from tampu.convert.checkpoint import read_safetensors
from tampu.convert.config import Config
from tampu.convert.families.qwen3vl import (
    QWEN3VL,
    QWEN3VL_MOE,
    added_features,
    gather,
    image_settings,
)
from tampu.errors import ModelFileError, UnsupportedModelError

TEXT: dict[str, Any] = handmade.CONFIG | {
    "rope_theta": 5e6,
    "rope_scaling": {
        "mrope_interleaved": True,
        "mrope_section": [24, 20, 20],
        "rope_type": "default",
    },
}
VISION: dict[str, Any] = {
    "depth": 5,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_heads": 4,
    "num_position_embeddings": 2304,
    "deepstack_visual_indexes": [1, 3],
}


def config(text: dict[str, Any] | None = None, **vision: Any) -> Config:
    return Config({"text_config": TEXT | (text or {}), "vision_config": VISION | vision})


def test_the_keys_are_those_of_llama_cpps_converter() -> None:
    keys = QWEN3VL.parameters(config())
    assert keys["rope.dimension_sections"] == [24, 20, 20, 0]
    assert keys["rope.freq_base"] == 5e6
    assert keys["n_deepstack_layers"] == 2
    assert keys["vision.is_deepstack_layers"] == [False, True, False, True, False]
    assert keys["vision.image_size"] == 48 * 16
    assert keys["vision.attention.head_count"] == 4
    assert keys["vision.block_count"] == 5


def test_what_is_added_is_numbered_by_the_encoders_layers() -> None:
    named = added_features(QWEN3VL.parameters(config()))
    (target,) = named["visual.deepstack_merger_list.1.linear_fc2.bias"]
    assert target == "v.deepstack.3.fc2.bias"
    assert len(named) == 2 * 3 * 2


@pytest.mark.parametrize("name", ["visual.blocks.3.attn.qkv", "model.visual.blocks.3.attn.qkv"])
def test_the_encoders_attention_stays_fused(name: str) -> None:
    assert QWEN3VL.rename(f"{name}.weight") == "v.blk.3.attn_qkv.weight"
    assert QWEN3VL.rename(f"{name}.bias") == "v.blk.3.attn_qkv.bias"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (config(deepstack_visual_indexes=[1, 5]), "deepstack_visual_indexes.*5 layers"),
        (config(num_position_embeddings=2300), "num_position_embeddings.*not a square"),
        (config(num_heads=5), "hidden_size.*multiple of 5 heads"),
    ],
)
def test_a_config_that_contradicts_itself_names_the_key(changed: Config, message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        QWEN3VL.parameters(changed)


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        (config(hidden_act="silu"), "hidden_act"),
        (config(temporal_patch_size=1), "temporal_patch_size"),
        (config({"attention_bias": True}), "attention_bias"),
        (config({"rope_scaling": {"mrope_interleaved": False}}), "mrope_interleaved"),
    ],
)
def test_settings_that_the_architecture_lacks_are_refused(changed: Config, key: str) -> None:
    with pytest.raises(UnsupportedModelError, match=key):
        QWEN3VL.parameters(changed)


def test_image_settings_are_those_of_the_checkpoints_processor() -> None:
    published = {
        "size": {"longest_edge": 16_777_216, "shortest_edge": 65_536},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.25, 1],
    }
    assert image_settings(Config(published)) == {
        "vision.min_pixels": 65_536,
        "vision.max_pixels": 32 * 32 * 1280,  # what a CPU encodes in seconds
        "vision.image_mean": [0.5, 0.5, 0.5],
        "vision.image_std": [0.5, 0.25, 1.0],
    }
    assert image_settings(Config({"max_pixels": 5000})) == {"vision.max_pixels": 5000}
    assert image_settings(Config({})) == {}
    with pytest.raises(ModelFileError, match=r"image_mean.*not a list of numbers"):
        image_settings(Config({"image_mean": "CLIP"}))


@pytest.mark.parametrize(("hidden", "inner"), [(4, 3), (4, 4), (4, 2)])  # two have squares
def test_experts_with_inputs_or_outputs_first_are_the_same(
    tmp_path: Path, hidden: int, inner: int
) -> None:
    """Published checkpoints have inputs first, those saved by other programs may not."""
    random = np.random.default_rng(0)
    stem = "model.language_model.layers.0.mlp.experts."
    upright = {
        f"{stem}gate_up_proj": random.random((2, 2 * inner, hidden), np.float32),
        f"{stem}down_proj": random.random((2, hidden, inner), np.float32),
    }
    published = {name: values.swapaxes(1, 2).copy() for name, values in upright.items()}
    for index, stored in enumerate((upright, published)):
        save_file(stored, tmp_path / f"{index}.safetensors")
        for tensor in gather(read_safetensors(tmp_path / f"{index}.safetensors")):
            np.testing.assert_array_equal(tensor.read(), upright[tensor.name])


def test_experts_whose_projections_do_not_match_are_an_error(tmp_path: Path) -> None:
    shapes = {"gate_up_proj": (2, 8, 4), "down_proj": (2, 3, 4)}
    values = {f"x.experts.{name}": np.zeros(shape, np.float32) for name, shape in shapes.items()}
    save_file(values, tmp_path / "x.safetensors")
    with pytest.raises(ModelFileError, match=r"x\.experts: the shapes .* do not match"):
        list(gather(read_safetensors(tmp_path / "x.safetensors")))


def test_the_checkpoints_of_these_families_are_known() -> None:
    names = ("Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration")
    assert [FAMILIES[name] for name in names] == [QWEN3VL, QWEN3VL_MOE]
