"""Gemma 4: keys and tensors of vision, what is refused, encoders of audio."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.checkpoints import RECIPES, make_checkpoint

from tampu.convert import convert, plan_conversion
from tampu.convert.config import Config
from tampu.convert.families.gemma4 import GEMMA4, GEMMA4_UNIFIED, GEMMA4_VISION
from tampu.convert.families.gemma4_vision import by_color, image_settings
from tampu.errors import ModelFileError, UnsupportedModelError
from tampu.ml.gguf import read_gguf


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("gemma4_seeing", tmp_path_factory.mktemp("seeing"))


@pytest.fixture
def copy(seeing: Path, tmp_path: Path) -> Path:
    """A checkpoint that a test may change."""
    return Path(shutil.copytree(seeing, tmp_path / "copy"))


def change(folder: Path, section: str, **values: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    (config[section] if section else config).update(values)
    path.write_text(json.dumps(config))


def test_tensors_and_keys_are_those_of_llama_cpps_converter(seeing: Path, tmp_path: Path) -> None:
    convert(seeing, tmp_path / "a.gguf", "F32")
    file = read_gguf(tmp_path / "a.gguf")
    shapes = {name: tuple(info.shape) for name, info in file.tensors.items()}
    assert shapes["v.patch_embd.weight"] == (64, 3, 4, 4)
    assert shapes["v.position_embd.weight"] == (2, 224, 64)
    assert shapes["mm.input_projection.weight"] == (128, 64)
    assert shapes["v.blk.1.attn_q.input_min"] == (1,)
    assert shapes["v.std_bias"] == (64,)
    names = ("attn_post_norm", "ffn_post_norm", "ln1", "ln2", "attn_out", "ffn_gate")
    assert {f"v.blk.0.{name}.weight" for name in names} <= shapes.keys()
    assert file.metadata.string("vision.projector_type") == "gemma4v"
    assert file.metadata.integer("vision.projector.scale_factor") == 3
    assert file.metadata.integer("vision.max_pixels") == 70 * 12 * 12


def test_numbers_of_a_patch_are_reordered_by_color() -> None:
    image = np.arange(2 * 2 * 3, dtype=np.float32)  # row, column, color
    assert by_color(image).tolist() == [0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11]
    assert np.array_equal(by_color(np.stack([image, -image]))[1], -by_color(image))


def test_the_processors_settings_are_found_in_both_files(copy: Path) -> None:
    (copy / "preprocessor_config.json").unlink()
    settings = {"image_processor": {"max_soft_tokens": 4}}
    (copy / "processor_config.json").write_text(json.dumps(settings))
    assert plan_conversion(copy).metadata["gemma4.vision.max_pixels"] == 4 * 48 * 48
    assert image_settings(Config({})) == {}


def test_a_checkpoint_without_its_encoder_is_a_model_of_text(copy: Path) -> None:
    change(copy, "", vision_config=None)
    path = copy / "model.safetensors"
    vision = ("model.vision_tower.", "model.embed_vision.")
    kept = {k: v for k, v in load_file(path).items() if not k.startswith(vision)}
    save_file(kept, path)
    plan = plan_conversion(copy)
    assert "gemma4.vision.block_count" not in plan.metadata
    assert not [tensor.name for tensor in plan.tensors if tensor.name.startswith(("v.", "mm."))]


@pytest.mark.parametrize(
    "name",
    [
        "model.vision_tower.encoder.layers.1.mlp.up_proj.linear.weight",
        "model.vision_tower.patch_embedder.position_embedding_table",
        "model.vision_tower.patch_embedder.input_proj.weight",
        "model.embed_vision.embedding_projection.weight",
    ],
)
def test_a_missing_tensor_of_the_encoder_is_named(copy: Path, name: str) -> None:
    path = copy / "model.safetensors"
    tensors = load_file(path)
    del tensors[name]
    save_file(tensors, path)
    stem = name.removeprefix("model.").removesuffix(".weight")
    with pytest.raises(ModelFileError, match=f"1 tensors are missing: {stem}"):
        plan_conversion(copy)


@pytest.mark.parametrize(
    ("section", "values", "key"),
    [
        ("vision_config", {"hidden_activation": "silu"}, "hidden_activation"),
        ("vision_config", {"num_key_value_heads": 2}, "num_key_value_heads"),
        ("vision_config", {"rope_parameters": {"rope_type": "yarn"}}, "rope_type"),
        ("text_config", {"use_bidirectional_attention": None}, "use_bidirectional_attention"),
        ("text_config", {"use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
    ],
)
def test_settings_that_the_architecture_lacks_are_refused(
    copy: Path, section: str, values: dict[str, Any], key: str
) -> None:
    change(copy, section, **values)
    with pytest.raises(UnsupportedModelError, match=key):
        plan_conversion(copy)


def test_an_encoder_of_audio_is_left_out_with_a_warning(
    copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = copy / "model.safetensors"
    audio = {"model.audio_tower.x.weight": np.ones((2, 2), np.float32)}
    audio["model.embed_audio.embedding_projection.weight"] = np.ones((2, 2), np.float32)
    save_file(load_file(path) | audio, path)
    with caplog.at_level(logging.WARNING, "tampu"):
        plan = plan_conversion(copy)
    assert "audio is not converted" in caplog.text
    assert not [each.name for each in plan.tensors if "audio" in each.name]
    assert [each.name for each in plan.tensors if each.name == "v.std_bias"]


def test_each_class_of_checkpoints_has_its_family() -> None:
    found = {each: RECIPES[each].architecture for each in RECIPES if each.startswith("gemma4")}
    assert found["gemma4"] in GEMMA4.checkpoints
    assert found["gemma4_small_seeing"] in GEMMA4_VISION.checkpoints
    assert found["gemma4_unified_seeing"] in GEMMA4_UNIFIED.checkpoints
