"""Mixtures of experts: which settings of config.json become keys, and which are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from tampu.convert import FAMILIES
from tampu.convert.config import Config
from tampu.errors import ModelFileError, UnsupportedModelError

TEXT: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
MIXTURE = TEXT | {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
DEEPSEEK = TEXT | {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 96,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}
LAGUNA = MIXTURE | {
    "shared_expert_intermediate_size": 96,
    "rope_parameters": {"full_attention": {"rope_theta": 5e5}},
}
USUAL: dict[str, dict[str, Any]] = {
    "Glm4MoeForCausalLM": DEEPSEEK,
    "Dots1ForCausalLM": DEEPSEEK,
    "MiniMaxM2ForCausalLM": TEXT | {"num_local_experts": 8, "num_experts_per_tok": 2},
    "Lfm2MoeForCausalLM": MIXTURE | {"conv_L_cache": 3, "layer_types": ["conv"] * 4},
    "OlmoeForCausalLM": MIXTURE,
    "Ernie4_5_MoeForCausalLM": TEXT
    | {"moe_num_experts": 8, "moe_k": 2, "moe_intermediate_size": 96, "moe_num_shared_experts": 2},
    "HunYuanMoEV1ForCausalLM": TEXT | {"num_experts": 8, "moe_topk": [2] * 4},
    "AfmoeForCausalLM": MIXTURE | {"mup_enabled": True, "num_shared_experts": 1},
    "LagunaForCausalLM": LAGUNA,
    "BailingMoeV2ForCausalLM": MIXTURE | {"num_shared_experts": 1, "first_k_dense_replace": 1},
    "HYV3ForCausalLM": MIXTURE,
    "ExaoneMoeForCausalLM": MIXTURE | {"num_shared_experts": 1, "sliding_window": 8},
}


def parameters(checkpoint: str, **changes: Any) -> dict[str, object]:
    family = FAMILIES[checkpoint]
    return family.parameters(family.complete(Config(USUAL[checkpoint] | changes)))


@pytest.mark.parametrize("checkpoint", USUAL)
def test_each_family_has_the_keys_of_a_mixture(checkpoint: str) -> None:
    keys = parameters(checkpoint)
    assert keys["expert_count"] == 8
    assert keys["expert_used_count"] == 2


@pytest.mark.parametrize(
    ("checkpoint", "key", "value"),
    [
        ("Glm4MoeForCausalLM", "num_experts_per_tok", 9),
        ("Glm4MoeForCausalLM", "n_group", 3),
        ("Glm4MoeForCausalLM", "topk_group", 2),
        ("Glm4MoeForCausalLM", "scoring_func", "softmax"),
        ("Glm4MoeForCausalLM", "first_k_dense_replace", -1),
        ("Dots1ForCausalLM", "moe_layer_freq", 2),
        ("Dots1ForCausalLM", "max_window_layers", 2),
        ("MiniMaxM2ForCausalLM", "attn_type_list", [1, 0, 1, 1]),
        ("MiniMaxM2ForCausalLM", "qk_norm_type", "per_head"),
        ("Lfm2MoeForCausalLM", "use_expert_bias", False),
        ("Lfm2MoeForCausalLM", "routed_scaling_factor", 2.0),
        ("OlmoeForCausalLM", "clip_qkv", 8.0),
        ("Ernie4_5_MoeForCausalLM", "moe_layer_interval", 2),
        ("Ernie4_5_MoeForCausalLM", "moe_layer_end_index", 2),
        ("Ernie4_5_MoeForCausalLM", "moe_k", 9),
        ("HunYuanMoEV1ForCausalLM", "moe_topk", [2, 2, 1, 2]),
        ("HunYuanMoEV1ForCausalLM", "use_cla", True),
        ("AfmoeForCausalLM", "mup_enabled", False),
        ("AfmoeForCausalLM", "layer_types", ["full_attention"] * 4),
        ("LagunaForCausalLM", "mlp_layer_types", ["sparse", "dense", "sparse", "sparse"]),
        ("LagunaForCausalLM", "num_attention_heads_per_layer", [4, 4]),
        ("LagunaForCausalLM", "layer_types", ["full_attention", "linear_attention"] * 2),
        ("BailingMoeV2ForCausalLM", "norm_head", True),
        ("HYV3ForCausalLM", "qk_norm", False),
        ("ExaoneMoeForCausalLM", "layer_types", ["full_attention"]),
    ],
)
def test_what_readers_do_not_compute_is_refused_by_name(
    checkpoint: str, key: str, value: object
) -> None:
    changes = {key: value}
    if key == "max_window_layers":
        changes["sliding_window"] = 16
    named = "n_group" if key == "topk_group" else key
    with pytest.raises((ModelFileError, UnsupportedModelError), match=named):
        parameters(checkpoint, **changes)


def test_hunyuans_alpha_is_a_larger_base_and_a_longer_context() -> None:
    rope = {"type": "dynamic", "alpha": 1000.0, "factor": 1.0, "mscale": 1.0}
    keys = parameters("HunYuanMoEV1ForCausalLM", rope_scaling=rope, rope_theta=1e4, head_dim=128)
    assert keys["rope.freq_base"] == pytest.approx(11_158_839.925, rel=1e-6)
    assert keys["context_length"] == 262_144


def test_patterns_of_windows_are_read_as_letters_or_as_a_period() -> None:
    key = "attention.sliding_window_pattern"
    by_letters = parameters("ExaoneMoeForCausalLM", sliding_window_pattern="LG")
    assert by_letters[key] == [True, False, True, False]
    by_period = parameters("ExaoneMoeForCausalLM", sliding_window_pattern=4)
    assert by_period[key] == [True, True, True, False]
