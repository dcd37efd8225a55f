"""Checkpoints of models that read text."""

from __future__ import annotations

from typing import Any

import transformers
from support.checkpoints.recipe import LLAMA3, SEED, TEXT, VOCABULARY, YARN, Recipe

GEMMA_TEXT = TEXT | {
    "num_hidden_layers": 7,
    "rms_norm_eps": 2e-2,
    "tie_word_embeddings": True,
    "sliding_window": 16,
    "query_pre_attn_scalar": 24,  # unlike the head size
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
}


def _llama(**changes: Any) -> Recipe:
    return Recipe("LlamaForCausalLM", transformers.LlamaConfig, TEXT | changes)


def gemma3(**changes: Any) -> Recipe:
    return Recipe(
        "Gemma3ForCausalLM",
        transformers.Gemma3TextConfig,
        GEMMA_TEXT | changes,
        "gemma",
        approximate=True,
    )


def _mistral(**changes: Any) -> Recipe:
    values = TEXT | {"head_dim": 64, "num_attention_heads": 3, "num_key_value_heads": 1} | changes
    return Recipe("MistralForCausalLM", transformers.MistralConfig, values, "sentencepiece")


def _qwen3(**changes: Any) -> Recipe:
    values = TEXT | {"head_dim": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
    values |= {"tie_word_embeddings": True, "rope_theta": 1e6} | changes
    return Recipe("Qwen3ForCausalLM", transformers.Qwen3Config, values, "qwen2")


def _gemma2(**changes: Any) -> Recipe:
    values = GEMMA_TEXT | {"num_hidden_layers": 4, "rope_theta": 1e4} | changes
    values |= {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 10.0}
    del values["rope_local_base_freq"]
    return Recipe("Gemma2ForCausalLM", transformers.Gemma2Config, values, "gemma", approximate=True)


GEMMA4_TEXT = TEXT | {
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "rms_norm_eps": 2e-2,
    "tie_word_embeddings": True,
    "sliding_window": 16,
    "global_head_dim": 64,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 0,
    "final_logit_softcapping": 10.0,
}


def _gemma4(*, seed: int = SEED, **changes: Any) -> Recipe:
    """Dense, as the largest: wider heads in the full layers, whose values are their keys."""
    config, values = transformers.Gemma4TextConfig, GEMMA4_TEXT | changes
    return Recipe("Gemma4ForCausalLM", config, values, "gemma", approximate=True, seed=seed)


GEMMA4_SMALL: dict[
    str, Any
] = {  # as E2B: inputs of each layer, and the last layers read the keys of others
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "attention_k_eq_v": False,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 32,
    "vocab_size_per_layer_input": VOCABULARY,
}

_GEMMA4_MIXTURE: dict[str, Any] = {  # as 26B-A4B: experts beside the dense part
    "enable_moe_block": True,
    "num_experts": 8,
    "top_k_experts": 2,
    "moe_intermediate_size": 96,
}


def _ministral3(**changes: Any) -> Recipe:
    """Text as in Ministral 3: YaRN without magnitude, queries that grow with their position."""
    values = TEXT | {"rope_parameters": YARN | {"rope_theta": 1e6} | changes}
    values |= {"sliding_window": None, "head_dim": 48}
    return Recipe("Ministral3ForCausalLM", transformers.Ministral3Config, values)


def gptoss(**changes: Any) -> Recipe:
    values = TEXT | {
        "num_hidden_layers": 4,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "sliding_window": 16,
        "attention_bias": True,
        "swiglu_limit": 1.5,  # small enough to matter
        "rope_parameters": YARN | {"rope_theta": 150_000.0, "truncate": False},
    }
    return Recipe("GptOssForCausalLM", transformers.GptOssConfig, values | changes)


def llama4(*, seed: int = SEED, **changes: Any) -> Recipe:
    values = TEXT | {
        "num_hidden_layers": 4,
        "intermediate_size_mlp": 192,
        "num_local_experts": 4,
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 2,
        "attention_chunk_size": 16,
        "floor_scale": 10,
        "attn_scale": 0.3,
        "rope_parameters": LLAMA3 | {"rope_theta": 500_000.0},
    }
    return Recipe("Llama4ForCausalLM", transformers.Llama4TextConfig, values | changes, seed=seed)


_DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
}

_EXPERTS = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 96,
    "shared_expert_intermediate_size": 160,
}


def _qwen35(
    architecture: str, config: type[transformers.PreTrainedConfig], **changes: Any
) -> Recipe:
    """Three gated delta nets, with one of attention between, as in Qwen 3.5 and Qwen3-Next."""
    kinds = ["linear_attention", "linear_attention", "full_attention", "linear_attention"]
    rope = {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5}
    values = TEXT | _DELTA | {"num_hidden_layers": 4, "layer_types": kinds}
    values |= {"rope_parameters": rope | changes.pop("rope", {})}
    seed = changes.pop("seed", SEED)
    return Recipe(architecture, config, values | changes, "qwen35", seed=seed)


_INTERLEAVED = {"mrope_interleaved": True, "mrope_section": [3, 3, 2]}

QWEN35 = _qwen35("Qwen3_5ForCausalLM", transformers.Qwen3_5TextConfig, rope=_INTERLEAVED)

QWEN35_MOE = _qwen35(
    "Qwen3_5MoeForCausalLM", transformers.Qwen3_5MoeTextConfig, rope=_INTERLEAVED, **_EXPERTS
)

LFM2 = Recipe(
    "Lfm2ForCausalLM",
    transformers.Lfm2Config,
    {name: value for name, value in TEXT.items() if name not in ("head_dim", "rms_norm_eps")}
    | {
        "num_hidden_layers": 4,
        "layer_types": ["conv", "full_attention", "conv", "conv"],
        "intermediate_size": 300,
        "block_multiple_of": 64,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
    },
)

RECIPES: dict[str, Recipe] = {
    "llama": _llama(),
    "llama_wide_heads": _llama(
        hidden_size=96, num_attention_heads=3, num_key_value_heads=1, head_dim=64
    ),
    "llama_rope_llama3": _llama(
        rope_theta=500_000.0,
        rope_scaling=LLAMA3,
    ),
    "llama_rope_linear": _llama(rope_scaling={"rope_type": "linear", "factor": 4.0}),
    "llama_biases": _llama(attention_bias=True, mlp_bias=True),
    "llama_tied": _llama(tie_word_embeddings=True),
    "mistral": _mistral(sliding_window=None),
    "mistral_window": _mistral(sliding_window=16),
    "qwen2": Recipe(
        "Qwen2ForCausalLM", transformers.Qwen2Config, TEXT | {"rope_theta": 1e6}, "qwen2"
    ),
    "qwen3": _qwen3(),
    "qwen3_yarn": _qwen3(
        max_position_embeddings=128,
        rms_norm_eps=1e-4,
        rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    ),
    "mistral3": _ministral3(mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1),
    "mixtral": Recipe(
        "MixtralForCausalLM",
        transformers.MixtralConfig,
        TEXT | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
        seed=2,
    ),
    "qwen2moe": Recipe(
        "Qwen2MoeForCausalLM",
        transformers.Qwen2MoeConfig,
        TEXT
        | {
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 96,
            "shared_expert_intermediate_size": 160,
            "norm_topk_prob": False,
            "rope_theta": 1e6,
        },
        "qwen2",
    ),
    "qwen3moe": Recipe(
        "Qwen3MoeForCausalLM",
        transformers.Qwen3MoeConfig,
        TEXT
        | {
            "head_dim": 64,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 96,
            "norm_topk_prob": True,
            "rope_theta": 1e6,
            "rms_norm_eps": 1e-5,
        },
        "qwen2",
        seed=2,
    ),
    "gptoss": gptoss(),
    "lfm2": LFM2,
    "qwen35": QWEN35,
    "qwen35moe": QWEN35_MOE,
    "qwen3next": _qwen35("Qwen3NextForCausalLM", transformers.Qwen3NextConfig, **_EXPERTS),
    "llama4_text": llama4(),
    "llama4_two_experts": llama4(num_experts_per_tok=2, interleave_moe_layer_step=1, seed=2),
    "llama4_without_tuning": llama4(
        use_qk_norm=False, attn_temperature_tuning=False, no_rope_layer_interval=2
    ),
    "gemma2": _gemma2(),
    "gemma3_text": gemma3(rope_scaling={"rope_type": "linear", "factor": 8.0}),
    "gemma3_period": gemma3(
        num_key_value_heads=1, query_pre_attn_scalar=32, sliding_window_pattern=3
    ),
    "gemma4": _gemma4(),
    "gemma4_small": _gemma4(**GEMMA4_SMALL),
    "gemma4_mixture": _gemma4(seed=24, **_GEMMA4_MIXTURE),
    "bert": Recipe(
        "BertModel",
        transformers.BertConfig,
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "max_position_embeddings": 128,
            "layer_norm_eps": 1e-3,
        },
        "wordpiece",
    ),
}
