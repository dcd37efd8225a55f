"""Checkpoints of mixtures of experts that `test_families` compares."""

from __future__ import annotations

from typing import Any

import transformers
from support.checkpoints import text
from support.checkpoints.recipe import LLAMA3, SEED, TEXT, YARN, Recipe

_DEEPSEEK: dict[str, Any] = TEXT | {  # the first layer is dense
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 96,
    "routed_scaling_factor": 1.5,
    "norm_topk_prob": True,
}


_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 96}


def _glm(*, seed: int = SEED, **changes: Any) -> Recipe:
    values = _DEEPSEEK | {"rope_theta": 1e6, "attention_bias": True} | changes
    return Recipe("Glm4MoeForCausalLM", transformers.Glm4MoeConfig, values, seed=seed)


_TWO = {"num_hidden_layers": 2}  # experts in all layers: fewer tokens on the verge


def _granite(
    architecture: str, config: type[transformers.PreTrainedConfig], **changes: Any
) -> Recipe:
    values = TEXT | _TWO | {"num_local_experts": 8, "num_experts_per_tok": 2, "rope_theta": 1e4}
    values |= {
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.6,
        "attention_multiplier": 0.2,
        "logits_scaling": 1.5,
    }
    return Recipe(architecture, config, values | changes)


def _laguna(*, seed: int = SEED, **changes: Any) -> Recipe:
    """The first of four layers attends to all, with fewer heads, half of each rotated."""
    values = (
        TEXT
        | _EXPERTS
        | {
            "num_hidden_layers": 5,
            "num_attention_heads": 2,
            "num_attention_heads_per_layer": [2, 4, 4, 4, 2],
            "layer_types": ["full_attention"] + ["sliding_attention"] * 3 + ["full_attention"],
            "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 2,
            "shared_expert_intermediate_size": 160,
            "moe_routed_scaling_factor": 1.5,
            "sliding_window": 16,
            "rope_parameters": {
                "full_attention": YARN | {"rope_theta": 5e5, "partial_rotary_factor": 0.5},
                "sliding_attention": {
                    "rope_type": "default",
                    "rope_theta": 1e4,
                    "partial_rotary_factor": 1.0,
                },
            },
        }
    )
    return Recipe("LagunaForCausalLM", transformers.LagunaConfig, values | changes, seed=seed)


RECIPES: dict[str, Recipe] = {
    "lfm2moe": Recipe(
        "Lfm2MoeForCausalLM",
        transformers.Lfm2MoeConfig,
        {
            name: value
            for name, value in text.RECIPES["lfm2"].values.items()
            if name != "block_multiple_of"
        }
        | _EXPERTS
        | {"norm_eps": 1e-3, "num_dense_layers": 2, "intermediate_size": 192}
        | {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]},
        seed=8,
    ),
    "glm4moe": _glm(use_qk_norm=True, seed=5),
    "solar_open": Recipe(
        "SolarOpenForCausalLM",
        transformers.SolarOpenConfig,
        {name: value for name, value in _DEEPSEEK.items() if name != "first_k_dense_replace"}
        | _TWO,
        seed=2,
    ),
    "hy_v3": Recipe(
        "HYV3ForCausalLM",
        transformers.HYV3Config,
        TEXT
        | _EXPERTS
        | {"mlp_layer_types": ["dense", "dense", "sparse"], "router_scaling_factor": 1.5},
    ),
    "exaone_moe": Recipe(
        "ExaoneMoeForCausalLM",
        transformers.ExaoneMoeConfig,
        TEXT
        | _EXPERTS
        | {
            "num_hidden_layers": 4,
            "first_k_dense_replace": 3,
            "sliding_window": 16,
            "rope_parameters": LLAMA3 | {"rope_theta": 1e6},
        },
        seed=3,
    ),
    "mellum": Recipe(
        "MellumForCausalLM",
        transformers.MellumConfig,
        TEXT
        | _TWO
        | {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
        | {
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": 16,
            "rope_parameters": {  # llama.cpp takes one base for both
                "full_attention": YARN | {"rope_theta": 5e5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
            },
        },
    ),
    "minimax_m2": Recipe(
        "MiniMaxM2ForCausalLM",
        transformers.MiniMaxM2Config,
        TEXT | _TWO | {"num_local_experts": 8, "num_experts_per_tok": 2, "rotary_dim": 16},
        seed=3,
    ),
    "granitemoe": _granite("GraniteMoeForCausalLM", transformers.GraniteMoeConfig),
    "granitemoe_shared": _granite(
        "GraniteMoeSharedForCausalLM",
        transformers.GraniteMoeSharedConfig,
        shared_intermediate_size=160,
    ),
    "ernie45_moe": Recipe(
        "Ernie4_5_MoeForCausalLM",
        transformers.Ernie4_5_MoeConfig,
        TEXT
        | _TWO
        | {
            "moe_num_experts": 8,
            "moe_k": 2,
            "moe_intermediate_size": 64,
            "moe_num_shared_experts": 2,
            "moe_layer_start_index": 1,
            "tie_word_embeddings": True,
            "rope_theta": 5e5,
        },
        seed=2,
    ),
    "dots1": Recipe(
        "Dots1ForCausalLM",
        transformers.Dots1Config,
        _DEEPSEEK
        | {"num_key_value_heads": 4, "n_shared_experts": 2, "n_group": 4, "topk_group": 2}
        | {"sliding_window": None, "rope_theta": 1e6},
        "qwen2",
        seed=5,
    ),
    "olmoe": Recipe(
        "OlmoeForCausalLM",
        transformers.OlmoeConfig,
        {name: value for name, value in TEXT.items() if name != "head_dim"}
        | _TWO
        | {"num_experts": 8, "num_experts_per_tok": 3, "num_key_value_heads": 4},
        seed=2,
    ),
    "hunyuan_moe": Recipe(
        "HunYuanMoEV1ForCausalLM",
        transformers.HunYuanMoEV1Config,
        TEXT | _TWO | {"num_experts": 8, "moe_topk": 2, "rope_theta": 1e4},
    ),
    "afmoe": Recipe(
        "AfmoeForCausalLM",
        transformers.AfmoeConfig,
        TEXT
        | _EXPERTS
        | {
            "num_hidden_layers": 5,
            "num_dense_layers": 3,
            "num_shared_experts": 1,
            "route_scale": 1.5,
            "sliding_window": 16,
            "mup_enabled": True,
        },
    ),
    "laguna": _laguna(),
    "laguna_without_windows": _laguna(
        num_hidden_layers=2,
        num_attention_heads=4,
        num_attention_heads_per_layer=None,
        layer_types=None,
        mlp_layer_types=["dense", "sparse"],
        gating="per-element",
        sliding_window=0,
        seed=9,
    ),
}
