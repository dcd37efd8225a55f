"""Qwen2.5-Omni and Qwen3-Omni: the thinker of a whole checkpoint, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.checkpoints import make_checkpoint

from tampu.convert import convert, plan_conversion
from tampu.errors import ModelFileError, UnsupportedModelError
from tampu.ml.gguf import read_gguf
from tests.convert.test_sounds import change

WHOLE = {
    "qwen25_omni": ("Qwen2_5OmniModel", {"token2wav_config": {"speed": 1}}),
    "qwen3_omni": ("Qwen3OmniMoeForConditionalGeneration", {"code2wav_config": {"speed": 1}}),
}


def publish(folder: Path, name: str) -> None:
    """Write a thinker's checkpoint as Qwen has it: with what speaks beside it."""
    config = json.loads((folder / "config.json").read_text())
    text, audio = config["text_config"], config["audio_config"]
    rope = text.pop("rope_parameters")
    text["rope_theta"] = rope.pop("rope_theta")
    text["rope_scaling"] = {**rope, "type": "default"}
    audio["num_hidden_layers"] = audio["encoder_layers"]
    architecture, more = WHOLE[name]
    del config["architectures"]
    published = {
        "architectures": [architecture],
        "thinker_config": config | {"seconds_per_chunk": 2, "user_token_id": 872},
        "talker_config": {"hidden_size": 8},
        "enable_audio_output": True,
        **more,
    }
    (folder / "config.json").write_text(json.dumps(published))
    named = load_file(folder / "model.safetensors").items()
    renamed = {f"thinker.{tensor.removeprefix('thinker.')}": values for tensor, values in named}
    speaking = {
        f"{part}.norm.weight": torch.ones(8) for part in ("talker", "token2wav", "code2wav")
    }
    save_file(renamed | speaking, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("name", WHOLE)
def test_the_thinker_of_a_whole_checkpoint_becomes_the_same_file(tmp_path: Path, name: str) -> None:
    checkpoint = make_checkpoint(name, tmp_path / "m")
    convert(checkpoint, tmp_path / "a.gguf", "F32")
    publish(checkpoint, name)
    convert(checkpoint, tmp_path / "b.gguf", "F32")
    theirs, ours = (read_gguf(tmp_path / f"{each}.gguf") for each in "ab")
    keys = {key: str(value) for key, value in theirs.metadata.items()}
    del keys["tokenizer.ggml.bos_token_id"]  # the published configuration states none
    assert {key: str(value) for key, value in ours.metadata.items()} == keys
    assert [*ours.tensors] == [*theirs.tensors]
    size = sum(tensor.size_bytes for tensor in ours.tensors.values())
    assert ours.path.read_bytes()[-size:] == theirs.path.read_bytes()[-size:]


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("qwen25_omni", {"audio_config.n_window": 75}, "n_window: 75 is odd"),
        ("qwen25_omni", {"audio_config.output_dim": 64}, "output_dim"),
        ("qwen25_omni", {"audio_config.activation_function": "relu"}, "activation_function"),
        ("qwen25_omni", {"vision_config.embed_dim": 32}, "embed_dim"),
        ("qwen3_omni", {"audio_config.n_window_infer": 250}, "250 is not a multiple of 100"),
        ("qwen3_omni", {"vision_config.apply_vit_abs_pos_embed": False}, "apply_vit_abs_pos_embed"),
        ("qwen3_omni", {"text_config.norm_topk_prob": False}, "norm_topk_prob"),
        ("qwen3_omni", {"speed": 2}, "speed is not known"),
    ],
)
def test_a_setting_that_a_file_cannot_carry_is_refused(
    tmp_path: Path, name: str, changes: dict[str, Any], reason: str
) -> None:
    checkpoint = make_checkpoint(name, tmp_path / name)
    change(checkpoint / "config.json", changes)
    with pytest.raises((ModelFileError, UnsupportedModelError), match=reason):
        plan_conversion(checkpoint)


@pytest.mark.parametrize(
    "changes",
    [{"hop_length": 200}, {"feature_size": 80}, {"image_mean": [0.4, 0.5, 0.5], "n_fft": 512}],
)
def test_pictures_and_sounds_have_their_settings_in_one_file(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    checkpoint = make_checkpoint("qwen3_omni", tmp_path / "m")
    plan_conversion(checkpoint)
    change(checkpoint / "preprocessor_config.json", changes)
    reason = f"preprocessor_config.json: {next(each for each in changes if each != 'image_mean')}"
    with pytest.raises(UnsupportedModelError, match=reason):
        plan_conversion(checkpoint)


def test_a_checkpoint_without_an_encoder_of_sounds_is_refused(tmp_path: Path) -> None:
    checkpoint = make_checkpoint("qwen25_omni", tmp_path / "m")
    path = checkpoint / "model.safetensors"
    kept = {name: values for name, values in load_file(path).items() if "audio_tower" not in name}
    save_file(kept, path, metadata={"format": "pt"})
    with pytest.raises(ModelFileError, match=r"tensors are missing: a\.conv1d"):
        plan_conversion(checkpoint)
