"""Qwen 3.5 and Qwen3-Next: their keys, the order of value heads, fused projections, MTP layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import handmade_checkpoints as handmade

from tampu.convert import FAMILIES
from tampu.convert.checkpoint import StoredTensor
from tampu.convert.config import Config
from tampu.convert.families.qwen35 import (
    QWEN3_NEXT,
    QWEN35,
    QWEN35_MOE,
    QWEN35_VISION,
    count_mtp_layers,
    fused_projections,
    gather,
    number_mtp_layers,
    tiled,
    tiled_inputs,
    transform_tiled,
)
from tampu.errors import ModelFileError, UnsupportedModelError

LINEAR, FULL = "linear_attention", "full_attention"
CONFIG: dict[str, Any] = handmade.CONFIG | {
    "hidden_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "num_hidden_layers": 8,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_interleaved": True,
        "mrope_section": [11, 11, 10],
    },
}
EXPERTS = {
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 96,
    "shared_expert_intermediate_size": 160,
}
KEYS: dict[str, object] = {
    "ssm.group_count": 2,
    "ssm.time_step_rank": 4,
    "ssm.state_size": 2,
    "block_count": 2,
}


def test_the_keys_of_qwen35() -> None:
    keys = QWEN35.parameters(Config(CONFIG))
    assert keys["ssm.conv_kernel"] == 4
    assert keys["ssm.state_size"] == 64
    assert keys["ssm.group_count"] == 4
    assert keys["ssm.time_step_rank"] == 8
    assert keys["ssm.inner_size"] == 512
    assert keys["full_attention_interval"] == 4
    assert keys["attention.key_length"] == 256
    assert keys["rope.dimension_count"] == 64
    assert keys["rope.dimension_sections"] == [11, 11, 10, 0]
    assert keys["rope.freq_base"] == 1e7


def test_the_keys_of_the_mixtures() -> None:
    without_width = {key: value for key, value in CONFIG.items() if key != "intermediate_size"}
    keys = QWEN35_MOE.parameters(Config(without_width | EXPERTS))
    assert keys["expert_count"] == 16
    assert keys["expert_used_count"] == 4
    assert keys["expert_feed_forward_length"] == 96
    assert keys["expert_shared_feed_forward_length"] == 160
    assert "rope.dimension_sections" not in QWEN3_NEXT.parameters(Config(CONFIG | EXPERTS))


def test_a_config_of_before_transformers_5_states_the_rotated_part_beside_the_base() -> None:
    old = {key: value for key, value in CONFIG.items() if key != "rope_parameters"}
    old |= {"rope_theta": 5e6, "partial_rotary_factor": 0.5, "rope_scaling": None} | EXPERTS
    keys = QWEN3_NEXT.parameters(Config(old))
    assert (keys["rope.freq_base"], keys["rope.dimension_count"]) == (5e6, 128)


def test_layers_without_a_regular_pattern_are_listed() -> None:
    kinds = [LINEAR, FULL, LINEAR, LINEAR, FULL, LINEAR, LINEAR, FULL]
    keys = QWEN35.parameters(Config(CONFIG | {"layer_types": kinds}))
    assert keys["attention.recurrent_layers"] == [kind == LINEAR for kind in kinds]
    assert "full_attention_interval" not in keys


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": [LINEAR] * 3}, "layer_types.*for 8 layers"),
        ({"layer_types": ["mamba"] * 8}, "layer_types.*mamba"),
        ({"linear_num_value_heads": 6}, "linear_num_value_heads: 6 heads.*multiple of 4"),
        ({"rope_parameters": {"partial_rotary_factor": 0.005}}, "partial_rotary_factor"),
    ],
)
def test_a_config_that_contradicts_itself_names_the_key(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelFileError, match=message):
        QWEN35.parameters(Config(CONFIG | changes))


@pytest.mark.parametrize(
    "changes", [{"linear_value_head_dim": 32}, {"hidden_act": "gelu"}, {"mlp_only_layers": [0]}]
)
def test_settings_that_the_architecture_lacks_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError, match=next(iter(changes))):
        QWEN35_MOE.parameters(Config(CONFIG | EXPERTS | changes))


def test_value_heads_are_stored_by_their_place_in_their_key_head() -> None:
    rows = np.arange(8, dtype=np.float32)
    assert tiled(rows, KEYS).tolist() == [0, 1, 4, 5, 2, 3, 6, 7]
    gates = transform_tiled("blk.0.ssm_beta.weight", np.eye(4, dtype=np.float32), KEYS)
    assert gates.argmax(1).tolist() == [0, 2, 1, 3]
    projection = np.arange(16, dtype=np.float32)[:, None]
    found = transform_tiled("blk.0.attn_qkv.weight", projection, KEYS)[:, 0].tolist()
    assert found == [*range(8), 8, 9, 12, 13, 10, 11, 14, 15]
    inputs = tiled_inputs("blk.0.ssm_out.weight", rows[None], KEYS)
    assert inputs.tolist() == [[0, 1, 4, 5, 2, 3, 6, 7]]
    assert tiled_inputs("blk.0.attn_output.weight", rows[None], KEYS).tolist() == [rows.tolist()]


def test_norms_are_around_one_and_decays_negative() -> None:
    zeros = np.zeros(4, np.float32)
    for name in ("output_norm", "blk.0.attn_norm", "blk.1.attn_q_norm", "blk.2.nextn.enorm"):
        assert transform_tiled(f"{name}.weight", zeros, KEYS).tolist() == [1] * 4
    assert transform_tiled("blk.0.ssm_norm.weight", zeros, KEYS) is zeros
    logarithms = np.log(np.array([1, 2, 3, 4], np.float32))
    decays = transform_tiled("blk.0.ssm_a", logarithms, KEYS)
    np.testing.assert_allclose(decays, [-1, -3, -2, -4], rtol=1e-6)


def test_qwen3_nexts_projection_is_cut_by_key_heads() -> None:
    """Of each key head: its query, its key, the values of its value heads, and their gates."""
    ((name, parts),) = fused_projections(KEYS).items()
    assert name == "model.layers.{}.linear_attn.in_proj_qkvz.weight"
    rows = np.arange(24, dtype=np.float32)[:, None] * np.ones((1, 3), np.float32)
    cut = {target: view(rows)[:, 0].tolist() for target, view in parts.items()}
    queries, keys, values = [0, 1, 12, 13], [2, 3, 14, 15], [*range(4, 8), *range(16, 20)]
    assert cut["blk.{}.attn_qkv.weight"] == [*queries, *keys, *values]
    assert cut["blk.{}.attn_gate.weight"] == [*range(8, 12), *range(20, 24)]


def stored(name: str) -> StoredTensor:
    return StoredTensor(name, "F32", (1,), None, 0, 4)


MTP_LAYER = ["mtp.fc.weight", "mtp.norm.weight", "mtp.layers.0.self_attn.q_proj.weight"]


def test_layers_of_multi_token_prediction_follow_the_others() -> None:
    names = [f"model.layers.{index}.input_layernorm.weight" for index in range(2)]
    found = [tensor.name for tensor in number_mtp_layers(map(stored, [*MTP_LAYER, *names]))]
    assert [QWEN35.rename(name) for name in found] == [
        "blk.2.nextn.eh_proj.weight",
        "blk.2.nextn.shared_head_norm.weight",
        "blk.2.attn_q.weight",
        "blk.0.attn_norm.weight",
        "blk.1.attn_norm.weight",
    ]


def test_a_checkpoint_with_vision_has_the_text_and_the_encoder_of_qwen3vl() -> None:
    names = ["lm_head.weight", "model.language_model.layers.0.mlp.up_proj.weight"]
    found = gather(map(stored, [*names, "model.visual.pos_embed.weight", *MTP_LAYER]))
    assert [QWEN35_VISION.rename(tensor.name) for tensor in found] == [
        "output.weight",
        "blk.0.ffn_up.weight",
        "v.position_embd.weight",
        "blk.1.nextn.eh_proj.weight",
        "blk.1.nextn.shared_head_norm.weight",
        "blk.1.attn_q.weight",
    ]
    vision = {"hidden_size": 64, "intermediate_size": 96, "num_heads": 4, "depth": 2}
    keys = QWEN35_VISION.parameters(Config({"text_config": CONFIG, "vision_config": vision}))
    assert keys.items() >= QWEN35.parameters(Config(CONFIG)).items()
    assert keys["vision.projector_type"] == "qwen3vl_merger"
    assert keys["n_deepstack_layers"] == 0
    ones = np.ones(4, np.float32)
    assert transform_tiled("v.post_ln.weight", ones, KEYS) is ones  # not around 0, as the text's


def test_layers_of_multi_token_prediction_are_counted_where_they_are() -> None:
    """Whatever config.json says: a checkpoint that was trained further often lacks them."""
    assert count_mtp_layers(KEYS, ["model.norm.weight"]) == KEYS
    keys = count_mtp_layers(KEYS, MTP_LAYER)
    assert (keys["block_count"], keys["nextn_predict_layers"]) == (3, 1)


def test_the_checkpoints_of_these_families_are_known() -> None:
    names = ("Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM", "Qwen3NextForCausalLM")
    assert [FAMILIES[name] for name in names] == [QWEN35, QWEN35_MOE, QWEN3_NEXT]


def test_a_checkpoint_whose_encoder_was_left_out_is_one_of_text() -> None:
    names = ["lm_head.weight", "model.language_model.layers.0.mlp.up_proj.weight"]
    assert QWEN35_VISION.for_tensors(names) is QWEN35
    assert QWEN35_VISION.for_tensors([*names, "model.visual.pos_embed.weight"]) is QWEN35_VISION
    assert QWEN35.for_tensors(names) is QWEN35
