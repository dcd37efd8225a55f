"""Models that hear: settings that an encoder does not have are refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from support.checkpoints import make_checkpoint

from tampu.convert import convert, plan_conversion
from tampu.errors import ModelFileError, TampuError, UnsupportedModelError
from tampu.ml.gguf import read_gguf


def change(path: Path, changes: dict[str, Any]) -> None:
    """Set keys of a JSON file; a name with a dot is of a section."""
    tree = json.loads(path.read_text())
    for name, value in changes.items():
        *sections, key = name.split(".")
        part = tree
        for section in sections:
            part = part[section]
        part[key] = value
    path.write_text(json.dumps(tree))


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("voxtral", {"audio_config.scale_embedding": True}, "scale_embedding"),
        ("voxtral", {"audio_config.activation_function": "relu"}, "activation_function"),
        ("voxtral", {"audio_config.num_attention_heads": 5}, "64 is not a multiple of 5 heads"),
        ("voxtral", {"projector_hidden_act": "relu"}, "projector_hidden_act"),
        ("voxtral", {"text_config.model_type": "qwen3"}, "model_type"),
        ("gemma4_small_hearing", {"audio_config.attention_chunk_size": 6}, "attention_chunk_size"),
        ("gemma4_small_hearing", {"audio_config.conv_kernel_size": 3}, "conv_kernel_size"),
        ("gemma4_small_hearing", {"audio_config.hidden_act": "gelu"}, "hidden_act"),
        ("qwen3_asr", {"audio_config.output_dim": 64}, "output_dim"),
        ("qwen3_asr", {"audio_config.n_window_infer": 250}, "250 is not a multiple of 100"),
        ("ultravox", {"projector_act": "gelu"}, "projector_act"),
        ("ultravox", {"projector_ln_mid": False}, "projector_ln_mid"),
        ("ultravox", {"audio_latency_block_size": 100}, "audio_latency_block_size"),
    ],
)
def test_a_setting_that_a_file_cannot_carry_is_refused(
    tmp_path: Path, name: str, changes: dict[str, Any], reason: str
) -> None:
    checkpoint = make_checkpoint(name, tmp_path / name)
    change(checkpoint / "config.json", changes)
    with pytest.raises(TampuError, match=reason) as error:
        plan_conversion(checkpoint)
    assert isinstance(error.value, ModelFileError | UnsupportedModelError)


def publish(folder: Path) -> None:
    """Write a checkpoint of Qwen3-ASR as Qwen's own repository has it: all of it is a thinker."""
    config = json.loads((folder / "config.json").read_text())
    text, audio = config["text_config"], config["audio_config"]
    rope = text.pop("rope_parameters")
    text["rope_theta"] = rope["rope_theta"]
    text["rope_scaling"] = {
        "mrope_section": [6, 5, 5],
        "mrope_interleaved": True,
        "interleaved": True,
        "rope_type": "default",
        "type": "default",
    }
    thinker = {
        "audio_config": {
            **audio,
            "model_type": "qwen3_asr_audio_encoder",
            "conv_chunksize": 500,
            "max_source_positions": audio.pop("max_position_embeddings"),
            "num_hidden_layers": audio["encoder_layers"],
        },
        "text_config": {**text, "model_type": "qwen3_asr_text"},
        "model_type": "qwen3_asr",
        "audio_token_id": config["audio_token_id"],
        "audio_start_token_id": 6,
        "audio_end_token_id": 8,
        "user_token_id": 9,
    }
    published = {
        "architectures": config["architectures"],
        "model_type": "qwen3_asr",
        "support_languages": ["English"],
        "thinker_config": thinker,
    }
    (folder / "config.json").write_text(json.dumps(published))
    names = (
        (r"^(model\.)?multi_modal_projector\.linear_", "thinker.audio_tower.proj"),
        (r"^(model\.)?audio_tower\.", "thinker.audio_tower."),
        (r"^(model\.language_model|language_model\.model)\.", "thinker.model."),
        (r"^(language_model\.)?lm_head\.", "thinker.lm_head."),
    )
    renamed = {}
    for name, values in load_file(folder / "model.safetensors").items():
        [found] = [re.sub(old, new, name) for old, new in names if re.match(old, name)]
        renamed[found] = values
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})


def test_qwens_own_layout_becomes_the_same_file(tmp_path: Path) -> None:
    checkpoint = make_checkpoint("qwen3_asr", tmp_path / "m")
    convert(checkpoint, tmp_path / "a.gguf", "F32")
    publish(checkpoint)
    convert(checkpoint, tmp_path / "b.gguf", "F32")
    theirs, ours = (read_gguf(tmp_path / f"{name}.gguf") for name in "ab")
    keys = {key: str(value) for key, value in theirs.metadata.items()}
    del keys["tokenizer.ggml.bos_token_id"]  # Qwen has no such token
    assert {key: str(value) for key, value in ours.metadata.items()} == keys
    assert [*ours.tensors] == [*theirs.tensors]
    size = sum(tensor.size_bytes for tensor in ours.tensors.values())
    assert ours.path.read_bytes()[-size:] == theirs.path.read_bytes()[-size:]


@pytest.mark.parametrize(
    ("name", "value"), [("activation_function", "relu"), ("output_dim", 64), ("speed", 2)]
)
def test_what_qwens_own_layout_cannot_carry_is_refused(
    tmp_path: Path, name: str, value: object
) -> None:
    checkpoint = make_checkpoint("qwen3_asr", tmp_path / "m")
    publish(checkpoint)
    change(checkpoint / "config.json", {f"thinker_config.audio_config.{name}": value})
    with pytest.raises(UnsupportedModelError, match=name):
        plan_conversion(checkpoint)


@pytest.mark.parametrize(
    "changes", [{"sampling_rate": 8000}, {"hop_length": 200}, {"feature_size": 80}, {"speed": 2}]
)
def test_a_feature_extractor_with_other_settings_is_refused(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    checkpoint = make_checkpoint("voxtral", tmp_path / "voxtral")
    change(checkpoint / "preprocessor_config.json", changes)
    with pytest.raises(
        UnsupportedModelError, match=f"preprocessor_config.json: {next(iter(changes))}"
    ):
        plan_conversion(checkpoint)
