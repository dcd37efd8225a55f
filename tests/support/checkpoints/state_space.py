"""Checkpoints of models with state spaces (Mamba), which `test_families` compares."""

from __future__ import annotations

from typing import Any

import transformers
from support.checkpoints.recipe import SEED, TEXT, Recipe


def nemotron(kinds: str, *, seed: int = SEED, **changes: Any) -> Recipe:
    """Each letter is a layer. The least step, which only transformers has, is below all."""
    values: dict[str, Any] = {name: value for name, value in TEXT.items() if name != "rms_norm_eps"}
    values |= {
        "hybrid_override_pattern": kinds,
        "num_hidden_layers": len(kinds),
        "layer_norm_epsilon": 1e-3,
        "ssm_state_size": 32,
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "n_groups": 2,
        "time_step_min": 1e-9,
    }
    return Recipe("NemotronHForCausalLM", transformers.NemotronHConfig, values | changes, seed=seed)


def _falcon(*, seed: int = SEED, **changes: Any) -> Recipe:
    values = TEXT | {
        "num_hidden_layers": 2,
        "mamba_d_ssm": 96,
        "mamba_n_heads": 6,
        "mamba_d_head": 16,
        "mamba_n_groups": 2,
        "mamba_d_state": 32,
        "mamba_norm_before_gate": False,
        "rope_theta": 1e6,
        "key_multiplier": 1.25,
        "attention_in_multiplier": 0.875,
        "attention_out_multiplier": 0.75,
        "ssm_in_multiplier": 1.5,
        "ssm_out_multiplier": 0.625,
        "ssm_multipliers": [0.75, 1.25, 1.5, 0.625, 0.875],
        "mlp_multipliers": [1.25, 0.75],
        "embedding_multiplier": 1.75,
        "lm_head_multiplier": 0.75,
    }
    config = transformers.FalconH1Config
    return Recipe("FalconH1ForCausalLM", config, values | changes, seed=seed)


def _granite(*, seed: int = SEED, **changes: Any) -> Recipe:
    values = TEXT | {
        "num_hidden_layers": 4,
        "layer_types": ["mamba", "mamba", "attention", "mamba"],
        "mamba_n_heads": 8,
        "mamba_d_state": 32,
        "mamba_d_conv": 4,
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "shared_intermediate_size": 160,
        "position_embedding_type": "nope",
        "attention_multiplier": 0.25,
        "embedding_multiplier": 2.0,
        "residual_multiplier": 0.5,
        "logits_scaling": 0.5,
    }
    config = transformers.GraniteMoeHybridConfig
    return Recipe("GraniteMoeHybridForCausalLM", config, values | changes, seed=seed)


_PURE: dict[str, Any] = {
    **{name: TEXT[name] for name in ("vocab_size", "hidden_size", "bos_token_id", "eos_token_id")},
    "num_hidden_layers": 3,
    "layer_norm_epsilon": 1e-3,
    "pad_token_id": None,
}

RECIPES: dict[str, Recipe] = {
    "jamba": Recipe(
        "JambaForCausalLM",
        transformers.JambaConfig,
        TEXT
        | {
            "num_hidden_layers": 3,
            "attn_layer_period": 3,
            "attn_layer_offset": 1,
            "expert_layer_period": 3,
            "expert_layer_offset": 2,
            "num_experts": 4,
            "num_experts_per_tok": 2,
        },
        seed=4,
    ),
    "mamba": Recipe(
        "MambaForCausalLM",
        transformers.MambaConfig,
        _PURE | {"state_size": 16, "tie_word_embeddings": False},
    ),
    "mamba2": Recipe(
        "Mamba2ForCausalLM",
        transformers.Mamba2Config,
        _PURE | {"state_size": 32, "num_heads": 8, "head_dim": 32, "n_groups": 2},
    ),
    "nemotron_h": nemotron("M-M*-"),
    "nemotron_h_moe": nemotron(
        "M*ME",
        seed=3,
        n_routed_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=96,
        moe_shared_expert_intermediate_size=160,
        moe_latent_size=64,
        n_group=2,
        topk_group=1,
        routed_scaling_factor=2.5,
    ),
    "falcon_h1": _falcon(),
    "granitehybrid": _granite(mamba_n_groups=2, position_embedding_type="rope", rope_theta=1e4),
    "granitehybrid_moe": _granite(num_local_experts=8, num_experts_per_tok=2, intermediate_size=96),
}
