"""Checkpoints of dense decoders that differ from Llama in what `test_families` compares."""

from __future__ import annotations

from typing import Any

import transformers
from support.checkpoints.recipe import LLAMA3, TEXT, YARN, Recipe

_WHOLE = {name: value for name, value in TEXT.items() if name != "head_dim"}


def _phi3(**changes: Any) -> Recipe:
    return Recipe("Phi3ForCausalLM", transformers.Phi3Config, _WHOLE | changes)


def _longrope(pairs: int, **others: Any) -> dict[str, Any]:
    """Return settings whose short and long factors differ in every pair of features."""
    return {
        "rope_type": "longrope",
        "short_factor": [1.0 + 0.1 * pair for pair in range(pairs)],
        "long_factor": [1.5 + 0.7 * pair for pair in range(pairs)],
    } | others


def _cohere(
    architecture: str,
    config: type[transformers.PreTrainedConfig],
    *,
    refusal: str = "",
    **changes: Any,
) -> Recipe:
    values = {name: value for name, value in _WHOLE.items() if name != "rms_norm_eps"}
    values |= {"layer_norm_eps": 1e-2, "logit_scale": 0.5, "tie_word_embeddings": True} | changes
    return Recipe(architecture, config, values, refusal=refusal)


_GRANITE: dict[str, Any] = {
    "embedding_multiplier": 12.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.22,
    "logits_scaling": 0.5,
}

# MiniCPM is Granite with scales by width and depth: 128 / 64 for logits, 1.4 / sqrt(3) for layers.
_MINICPM: dict[str, Any] = {
    "rope_theta": 10_000.0,
    "rope_scaling": _longrope(16, original_max_position_embeddings=16, factor=32.0),
}

# EXAONE 3 is Llama under other names.
_EXAONE: dict[str, Any] = {"rope_theta": 1e6, "rope_scaling": LLAMA3}
_SHARED_BY_EXAONE = _WHOLE.keys() - {"rms_norm_eps", "num_hidden_layers"}

RECIPES: dict[str, Recipe] = {
    "apertus": Recipe(
        "ApertusForCausalLM",
        transformers.ApertusConfig,
        _WHOLE | {"rope_parameters": LLAMA3 | {"rope_theta": 12e6}},
    ),
    "command_r": _cohere("CohereForCausalLM", transformers.CohereConfig),
    "command_r_plus": _cohere(
        "CohereForCausalLM",
        transformers.CohereConfig,
        refusal="wrong number of tensors",  # it reads norms of queries from 64 layers on
        use_qk_norm=True,
    ),
    "cohere2": _cohere(
        "Cohere2ForCausalLM", transformers.Cohere2Config, num_hidden_layers=4, sliding_window=16
    ),
    "ernie4_5": Recipe(
        "Ernie4_5ForCausalLM",
        transformers.Ernie4_5Config,
        TEXT | {"tie_word_embeddings": True},
    ),
    "exaone": Recipe(
        "LlamaForCausalLM",
        transformers.LlamaConfig,
        _WHOLE | _EXAONE,
        published={name: _WHOLE[name] for name in _SHARED_BY_EXAONE}
        | _EXAONE
        | {
            "architectures": ["ExaoneForCausalLM"],
            "model_type": "exaone",
            "activation_function": "silu",
            "layer_norm_epsilon": _WHOLE["rms_norm_eps"],
            "num_layers": _WHOLE["num_hidden_layers"],
        },
        renames=(
            (r"model.layers.(\d+).self_attn.o_proj", r"transformer.h.\1.attn.attention.out_proj"),
            (r"model.layers.(\d+).self_attn", r"transformer.h.\1.attn.attention"),
            (r"model.layers.(\d+).input_layernorm", r"transformer.h.\1.ln_1"),
            (r"model.layers.(\d+).post_attention_layernorm", r"transformer.h.\1.ln_2"),
            (r"model.layers.(\d+).mlp.gate_proj", r"transformer.h.\1.mlp.c_fc_0"),
            (r"model.layers.(\d+).mlp.up_proj", r"transformer.h.\1.mlp.c_fc_1"),
            (r"model.layers.(\d+).mlp.down_proj", r"transformer.h.\1.mlp.c_proj"),
            (r"model.embed_tokens", r"transformer.wte"),
            (r"model.norm", r"transformer.ln_f"),
        ),
    ),
    "exaone4": Recipe(
        "Exaone4ForCausalLM",
        transformers.Exaone4Config,
        _WHOLE
        | {
            "sliding_window": None,
            "layer_types": ["full_attention"] * 3,
            "tie_word_embeddings": True,
            "rope_scaling": LLAMA3,
        },
    ),
    "exaone4_windows": Recipe(
        "Exaone4ForCausalLM",
        transformers.Exaone4Config,
        _WHOLE
        | {
            "sliding_window": 16,
            "sliding_window_pattern": "LG",
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
        refusal="exaone4_windows",  # it has windows in models of 64 layers only
    ),
    "glm4": Recipe("Glm4ForCausalLM", transformers.Glm4Config, TEXT | {"attention_bias": True}),
    "granite": Recipe(
        "GraniteForCausalLM",
        transformers.GraniteConfig,
        _WHOLE | _GRANITE | {"attention_bias": True, "mlp_bias": True},
    ),
    "granite_swa": Recipe(
        "GraniteSWAForCausalLM",
        transformers.GraniteSWAConfig,
        _WHOLE
        | _GRANITE
        | {"num_hidden_layers": 5, "sliding_window": 16, "layer_rope_theta": [0, 1e4, 1e4, 1e4, 0]},
    ),
    "minicpm": Recipe(
        "GraniteForCausalLM",
        transformers.GraniteConfig,
        _WHOLE
        | _MINICPM
        | {
            "embedding_multiplier": 12.0,
            "attention_multiplier": 32**-0.5,
            "residual_multiplier": 1.4 * 3**-0.5,
            "logits_scaling": 2.0,
        },
        published=_WHOLE
        | _MINICPM
        | {
            "architectures": ["MiniCPMForCausalLM"],
            "model_type": "minicpm",
            "hidden_act": "silu",
            "scale_emb": 12,
            "scale_depth": 1.4,
            "dim_model_base": 64,
        },
    ),
    # llama.cpp ignores the window, so it is longer than what llama.cpp computes here. Of models
    # with "phi3" in their names it requires tokens that the tiny vocabulary does not have.
    "phi4": _phi3(
        sliding_window=40,
        original_max_position_embeddings=256,
        rope_scaling=_longrope(16),
    ),
    "phi4_mini": _phi3(
        sliding_window=None,
        tie_word_embeddings=True,
        partial_rotary_factor=0.75,
        original_max_position_embeddings=16,
        rope_scaling=_longrope(12),
    ),
    "hunyuan": Recipe(
        "HunYuanDenseV1ForCausalLM",
        transformers.HunYuanDenseV1Config,
        TEXT | {"rope_scaling": {"rope_type": "dynamic", "factor": 1.0, "alpha": 1000.0}},
    ),
    "muse_glimmer": Recipe(
        "MuseGlimmerForConditionalGeneration",
        transformers.MuseGlimmerConfig,
        {
            "text_config": TEXT
            | {"num_hidden_layers": 5, "sliding_window": 16, "qk_scale_factor": 1.5},
            "vision_config": {
                "hidden_size": 32,
                "intermediate_size": 32,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "pos_emb_height": 4,
                "pos_emb_width": 4,
            },
            "out_hidden_size": 128,
            "projector_hidden_size": 32,
        },
        seed=2,
    ),
    "olmo2": Recipe("Olmo2ForCausalLM", transformers.Olmo2Config, _WHOLE),
    "olmo3": Recipe(
        "Olmo3ForCausalLM",
        transformers.Olmo3Config,
        _WHOLE
        | {
            "sliding_window": 16,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
                "full_attention": YARN | {"rope_theta": 5e5, "attention_factor": 1.2},
            },
        },
    ),
    "seed_oss": Recipe("SeedOssForCausalLM", transformers.SeedOssConfig, TEXT),
    "smollm3": Recipe(
        "SmolLM3ForCausalLM",
        transformers.SmolLM3Config,
        TEXT | {"num_hidden_layers": 5, "rope_theta": 2e6, "no_rope_layer_interval": 4},
    ),
}
