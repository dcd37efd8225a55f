"""Models that hear: settings that an encoder does not have are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import make_checkpoint

from tampu.convert import plan_conversion
from tampu.errors import ModelFileError, TampuError, UnsupportedModelError


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
