"""Checkpoints of models with latent attention."""

from __future__ import annotations

from typing import Any

import transformers
from support.checkpoints.recipe import CONTEXT, TEXT, YARN, Recipe

_LATENT: dict[str, Any] = {name: value for name, value in TEXT.items() if name != "head_dim"} | {
    "num_key_value_heads": 4,
    "kv_lora_rank": 64,
    "q_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 24,
}
_EXPERTS = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 96,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
}

RECIPES: dict[str, Recipe] = {
    "deepseek2_v2_lite": Recipe(
        "DeepseekV2ForCausalLM",
        transformers.DeepseekV2Config,
        _LATENT
        | _EXPERTS
        | {"q_lora_rank": None, "topk_method": "greedy", "routed_scaling_factor": 1.5},
        refusal="Failed to init server",  # it wants a low rank, but of 26 layers
    ),
    "deepseek2_v3": Recipe(
        "DeepseekV3ForCausalLM",
        transformers.DeepseekV3Config,
        _LATENT
        | _EXPERTS
        | {
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 2.5,
            "rope_parameters": YARN
            | {"rope_theta": 1e4, "mscale": 1.0, "mscale_all_dim": 1.0, "factor": 8.0},
        },
    ),
    "kimi_linear": Recipe(
        "KimiLinearForCausalLM",
        transformers.KimiLinearConfig,
        {name: value for name, value in _LATENT.items() if name != "max_position_embeddings"}
        | {
            "num_hidden_layers": 4,
            "layer_types": ["linear_attention", "full_attention", *["linear_attention"] * 2],
            "mlp_layer_types": ["dense", "dense", "sparse", "sparse"],
            "q_lora_rank": None,
            "model_max_length": CONTEXT,
            "linear_num_heads": 4,
            "linear_head_dim": 32,
            "num_experts": 8,
            "num_experts_per_token": 2,
            "moe_intermediate_size": 96,
            "num_shared_experts": 1,
            "num_expert_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.5,
        },
        renames=((r"forget_gate\.", ""),),
    ),
    "mistral4": Recipe(
        "Mistral4ForCausalLM",
        transformers.Mistral4Config,
        _LATENT
        | _EXPERTS
        | {"first_k_dense_replace": 0, "routed_scaling_factor": 1.5}
        | {
            "rope_parameters": YARN
            | {"rope_theta": 1e4, "mscale": 1.0, "mscale_all_dim": 1.0, "factor": 8.0}
            | {"llama_4_scaling_beta": 0.1},
        },
    ),
    # llama.cpp has the scales of the published model only: 1.4 / sqrt(3) of layers, 128 / 256.
    "minicpm3": Recipe(
        "MiniCPM3ForCausalLM",
        transformers.MiniCPM3Config,
        _LATENT
        | {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256}
        | {
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "short_factor": [1.0 + 0.1 * pair for pair in range(8)],
                "long_factor": [1.5 + 0.7 * pair for pair in range(8)],
                "original_max_position_embeddings": 16,
                "factor": 32.0,
            }
        },
    ),
    "deepseek2_youtu": Recipe("YoutuForCausalLM", transformers.YoutuConfig, _LATENT),
    "deepseek2_glm": Recipe(
        "Glm4MoeLiteForCausalLM",
        transformers.Glm4MoeLiteConfig,
        _LATENT
        | {name: value for name, value in _EXPERTS.items() if name != "first_k_dense_replace"}
        | {"mlp_layer_types": ["dense", "sparse", "sparse"], "routed_scaling_factor": 1.8},
    ),
}
