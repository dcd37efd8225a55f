"""Tiny checkpoints of each architecture, made with transformers as a publisher would save them.

The weights are drawn so that every part matters: with transformers' own initialisation attention is
almost uniform, norms are one and biases zero, and most mistakes stay invisible. They are numbers
that F16 and BF16 hold exactly, so that storing them in either changes nothing.
"""

from __future__ import annotations

import functools
import json
import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import transformers
from support.made_once import key_of, made_once
from support.tiny_tokenizers import (
    write_byte_level,
    write_gemma,
    write_sentencepiece,
    write_unigram,
    write_wordpiece,
)
from transformers import PreTrainedModel

transformers.utils.logging.disable_progress_bar()

SEED = 1
VOCABULARY = 512
CONTEXT = 512

_TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-3,  # large enough to matter
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
_GEMMA_TEXT = _TEXT | {
    "num_hidden_layers": 7,
    "rms_norm_eps": 2e-2,
    "tie_word_embeddings": True,
    "sliding_window": 16,
    "query_pre_attn_scalar": 24,  # unlike the head size
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
}
_YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_SIGLIP = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 112,
    "patch_size": 14,
    "layer_norm_eps": 2e-2,
    "vision_use_head": False,
}


@dataclass(frozen=True)
class Recipe:
    """What a checkpoint is made of.

    `approximate` says that ggml's CPU code takes the activation from a table in half precision,
    `approximate_tower` that it does so for pictures only. `processor` is preprocessor_config.json.
    Mixtures of experts have a `seed` with which no token is on the verge of another expert: there
    the rounding of a half-precision cache would change the choice, and all that follows from it.
    """

    architecture: str
    config: type[transformers.PreTrainedConfig]
    values: dict[str, Any] = field(default_factory=dict)
    tokenizer: str = "llama3"
    approximate: bool = False
    approximate_tower: bool = False
    seed: int = SEED
    processor: dict[str, Any] = field(default_factory=dict)


def _llama(**changes: Any) -> Recipe:
    return Recipe("LlamaForCausalLM", transformers.LlamaConfig, _TEXT | changes)


def _gemma3(**changes: Any) -> Recipe:
    return Recipe(
        "Gemma3ForCausalLM",
        transformers.Gemma3TextConfig,
        _GEMMA_TEXT | changes,
        "gemma",
        approximate=True,
    )


def _mistral(**changes: Any) -> Recipe:
    values = _TEXT | {"head_dim": 64, "num_attention_heads": 3, "num_key_value_heads": 1} | changes
    return Recipe("MistralForCausalLM", transformers.MistralConfig, values, "sentencepiece")


def _qwen3(**changes: Any) -> Recipe:
    values = _TEXT | {"head_dim": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
    values |= {"tie_word_embeddings": True, "rope_theta": 1e6} | changes
    return Recipe("Qwen3ForCausalLM", transformers.Qwen3Config, values, "qwen2")


def _gemma2(**changes: Any) -> Recipe:
    values = _GEMMA_TEXT | {"num_hidden_layers": 4, "rope_theta": 1e4} | changes
    values |= {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 10.0}
    del values["rope_local_base_freq"]
    return Recipe("Gemma2ForCausalLM", transformers.Gemma2Config, values, "gemma", approximate=True)


_GEMMA4_TEXT = _TEXT | {
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
    config, values = transformers.Gemma4TextConfig, _GEMMA4_TEXT | changes
    return Recipe("Gemma4ForCausalLM", config, values, "gemma", approximate=True, seed=seed)


_GEMMA4_SMALL: dict[
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


_GEMMA4_TOWER = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "patch_size": 4,
    "pooling_kernel_size": 3,
    "position_embedding_size": 224,
    "rms_norm_eps": 2e-2,
}
_GEMMA4_EMBEDDER = {
    "patch_size": 4,
    "pooling_kernel_size": 3,
    "mm_embed_dim": 96,
    "mm_posemb_size": 72,
    "output_proj_dims": 96,
    "rms_norm_eps": 2e-2,
}


def _seeing4(
    architecture: str,
    config: type[transformers.PreTrainedConfig],
    vision: dict[str, Any],
    **changes: Any,
) -> Recipe:
    """An image's tokens see one another in the layers with a window, but not in small models."""
    text = _GEMMA4_TEXT | {"pad_token_id": 0, "use_bidirectional_attention": "vision"} | changes
    marks = {"boi_token_id": 6, "eoi_token_id": 7, "image_token_id": 8, "video_token_id": 500}
    values = {"text_config": text, "vision_config": vision, "audio_config": None, **marks}
    return Recipe(
        architecture,
        config,
        values,
        "gemma4_image",
        approximate=True,
        processor={"patch_size": 4, "pooling_kernel_size": 3, "max_soft_tokens": 70},
    )


def _ministral3(**changes: Any) -> Recipe:
    """Text as in Ministral 3: YaRN without magnitude, queries that grow with their position."""
    values = _TEXT | {"rope_parameters": _YARN | {"rope_theta": 1e6} | changes}
    values |= {"sliding_window": None, "head_dim": 48}
    return Recipe("Ministral3ForCausalLM", transformers.Ministral3Config, values)


def _gptoss(**changes: Any) -> Recipe:
    values = _TEXT | {
        "num_hidden_layers": 4,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "sliding_window": 16,
        "attention_bias": True,
        "swiglu_limit": 1.5,  # small enough to matter
        "rope_parameters": _YARN | {"rope_theta": 150_000.0, "truncate": False},
    }
    return Recipe("GptOssForCausalLM", transformers.GptOssConfig, values | changes)


def _llama4(*, seed: int = SEED, **changes: Any) -> Recipe:
    values = _TEXT | {
        "num_hidden_layers": 4,
        "intermediate_size_mlp": 192,
        "num_local_experts": 4,
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 2,
        "attention_chunk_size": 16,
        "floor_scale": 10,
        "attn_scale": 0.3,
        "rope_parameters": _LLAMA3 | {"rope_theta": 500_000.0},
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
    values = _TEXT | _DELTA | {"num_hidden_layers": 4, "layer_types": kinds}
    values |= {"rope_parameters": rope | changes.pop("rope", {})}
    seed = changes.pop("seed", SEED)
    return Recipe(architecture, config, values | changes, "qwen35", seed=seed)


_INTERLEAVED = {"mrope_interleaved": True, "mrope_section": [3, 3, 2]}
_SMALL_PICTURES = {
    "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280},
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
}
_IMAGE_TOKENS = {
    "image_token_id": 7,
    "vision_start_token_id": 6,
    "vision_end_token_id": 8,
    "video_token_id": 500,
}
_TOWER = {
    "depth": 4,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_heads": 4,
    "out_hidden_size": 128,
    "num_position_embeddings": 36,
}


_VL_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 96}


def _qwen3vl(
    architecture: str, config: type[transformers.PreTrainedConfig], **changes: Any
) -> Recipe:
    """The second and third number of a position end before the first, as in published models."""
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_interleaved": True}
    rope["mrope_section"] = changes.pop("sections", [8, 4, 4])
    seed = changes.pop("seed", SEED)
    values = {
        "text_config": _TEXT | {"num_hidden_layers": 4, "rope_parameters": rope} | changes,
        "vision_config": _TOWER | {"deepstack_visual_indexes": [0, 2]},
        **_IMAGE_TOKENS,
    }
    return Recipe(
        architecture,
        config,
        values,
        "qwen2_image",
        approximate_tower=True,
        seed=seed,
        processor=_SMALL_PICTURES,
    )


_QWEN35 = _qwen35("Qwen3_5ForCausalLM", transformers.Qwen3_5TextConfig, rope=_INTERLEAVED)
_QWEN35_MOE = _qwen35(
    "Qwen3_5MoeForCausalLM", transformers.Qwen3_5MoeTextConfig, rope=_INTERLEAVED, **_EXPERTS
)


def _seeing35(
    architecture: str, config: type[transformers.PreTrainedConfig], text: Recipe
) -> Recipe:
    values = {"text_config": text.values, "vision_config": _TOWER, **_IMAGE_TOKENS}
    return Recipe(
        architecture,
        config,
        values,
        "qwen35_image",
        approximate_tower=True,
        processor=_SMALL_PICTURES,
    )


RECIPES: dict[str, Recipe] = {
    "llama": _llama(),
    "llama_wide_heads": _llama(
        hidden_size=96, num_attention_heads=3, num_key_value_heads=1, head_dim=64
    ),
    "llama_rope_llama3": _llama(
        rope_theta=500_000.0,
        rope_scaling=_LLAMA3,
    ),
    "llama_rope_linear": _llama(rope_scaling={"rope_type": "linear", "factor": 4.0}),
    "llama_biases": _llama(attention_bias=True, mlp_bias=True),
    "llama_tied": _llama(tie_word_embeddings=True),
    "mistral": _mistral(sliding_window=None),
    "mistral_window": _mistral(sliding_window=16),
    "qwen2": Recipe(
        "Qwen2ForCausalLM", transformers.Qwen2Config, _TEXT | {"rope_theta": 1e6}, "qwen2"
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
        _TEXT | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
        seed=2,
    ),
    "qwen2moe": Recipe(
        "Qwen2MoeForCausalLM",
        transformers.Qwen2MoeConfig,
        _TEXT
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
        _TEXT
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
    "gptoss": _gptoss(),
    "lfm2": Recipe(
        "Lfm2ForCausalLM",
        transformers.Lfm2Config,
        {name: value for name, value in _TEXT.items() if name not in ("head_dim", "rms_norm_eps")}
        | {
            "num_hidden_layers": 4,
            "layer_types": ["conv", "full_attention", "conv", "conv"],
            "intermediate_size": 300,
            "block_multiple_of": 64,
            "rope_theta": 1e6,
            "tie_word_embeddings": True,
        },
    ),
    "qwen35": _QWEN35,
    "qwen35_seeing": _seeing35(
        "Qwen3_5ForConditionalGeneration", transformers.Qwen3_5Config, _QWEN35
    ),
    "qwen35moe": _QWEN35_MOE,
    "qwen35moe_seeing": _seeing35(
        "Qwen3_5MoeForConditionalGeneration", transformers.Qwen3_5MoeConfig, _QWEN35_MOE
    ),
    "qwen3next": _qwen35("Qwen3NextForCausalLM", transformers.Qwen3NextConfig, **_EXPERTS),
    "llama4_text": _llama4(),
    "llama4_two_experts": _llama4(num_experts_per_tok=2, interleave_moe_layer_step=1, seed=2),
    "llama4_without_tuning": _llama4(
        use_qk_norm=False, attn_temperature_tuning=False, no_rope_layer_interval=2
    ),
    "gemma2": _gemma2(),
    "gemma3_text": _gemma3(rope_scaling={"rope_type": "linear", "factor": 8.0}),
    "gemma3_period": _gemma3(
        num_key_value_heads=1, query_pre_attn_scalar=32, sliding_window_pattern=3
    ),
    "gemma4": _gemma4(),
    "gemma4_small": _gemma4(**_GEMMA4_SMALL),
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
    "llava": Recipe(
        "LlavaForConditionalGeneration",
        transformers.LlavaConfig,
        {
            "text_config": _TEXT | {"model_type": "llama", "num_hidden_layers": 2},
            "vision_config": {
                "model_type": "clip_vision_model",
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_hidden_layers": 3,
                "num_attention_heads": 4,
                "image_size": 112,
                "patch_size": 14,
                "projection_dim": 32,
                "layer_norm_eps": 1e-3,
            },
            "image_token_index": 6,
        },
        "llama3_image",
    ),
    "mistral3_vision": Recipe(
        "Mistral3ForConditionalGeneration",
        transformers.Mistral3Config,
        {
            "text_config": _TEXT
            | {"model_type": "mistral", "head_dim": 48, "rope_theta": 1e9, "sliding_window": None},
            "vision_config": {
                "model_type": "pixtral",
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "head_dim": 16,
                "image_size": 140,
                "patch_size": 14,
                "hidden_act": "silu",
            },
            "image_token_index": 7,
            "vision_feature_layer": -1,
            "spatial_merge_size": 2,
        },
        "llama3_image",
    ),
    "llama4_vision": Recipe(
        "Llama4ForConditionalGeneration",
        transformers.Llama4Config,
        {
            "text_config": _llama4().values,
            "vision_config": {
                "hidden_size": 64,
                "intermediate_size": 256,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "image_size": 112,
                "patch_size": 14,
                "vision_output_dim": 96,
                "projector_input_dim": 96,
                "projector_output_dim": 96,
                "pixel_shuffle_ratio": 0.5,
                "norm_eps": 1e-3,
            },
            "image_token_index": 7,
        },
        "llama4_image",
    ),
    "mllama": Recipe(
        "MllamaForConditionalGeneration",
        transformers.MllamaConfig,
        {
            "text_config": {name: value for name, value in _TEXT.items() if name != "head_dim"}
            | {
                "num_hidden_layers": 4,
                "cross_attention_layers": [1, 3],
                "rope_parameters": _LLAMA3 | {"rope_theta": 500_000.0},
                "pad_token_id": 0,
            },
            "vision_config": {
                "hidden_size": 64,
                "attention_heads": 4,
                "intermediate_size": 128,
                "num_hidden_layers": 4,
                "num_global_layers": 2,
                "image_size": 112,
                "patch_size": 14,
                "max_num_tiles": 4,
                "intermediate_layers_indices": [1, 3],
                "vision_output_dim": 192,
                "norm_eps": 1e-3,
            },
            "image_token_index": 10,
        },
        "llama3_image",
    ),
    "qwen25vl": Recipe(
        "Qwen2_5_VLForConditionalGeneration",
        transformers.Qwen2_5_VLConfig,
        {
            "text_config": {name: value for name, value in _TEXT.items() if name != "head_dim"}
            | {
                "model_type": "qwen2_5_vl_text",
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 1e6,
                    "mrope_section": [4, 6, 6],
                },
            },
            "vision_config": {
                "depth": 4,
                "hidden_size": 64,
                "intermediate_size": 96,
                "num_heads": 4,
                "out_hidden_size": 128,
                "patch_size": 14,
                "window_size": 112,
                "fullatt_block_indexes": [1, 3],
                "hidden_act": "silu",
            },
            "image_token_id": 7,
            "vision_start_token_id": 6,
            "vision_end_token_id": 8,
            "video_token_id": 500,
        },
        "qwen2_image",
    ),
    "qwen3vl": _qwen3vl("Qwen3VLForConditionalGeneration", transformers.Qwen3VLConfig),
    "qwen3vlmoe": _qwen3vl(
        "Qwen3VLMoeForConditionalGeneration",
        transformers.Qwen3VLMoeConfig,
        seed=2,
        **_VL_EXPERTS,
    ),
    "gemma4_seeing": _seeing4(
        "Gemma4ForConditionalGeneration",
        transformers.Gemma4Config,
        _GEMMA4_TOWER | {"use_clipped_linears": True, "standardize": True},
    ),
    "gemma4_small_seeing": _seeing4(
        "Gemma4ForConditionalGeneration",
        transformers.Gemma4Config,
        _GEMMA4_TOWER,
        **_GEMMA4_SMALL,
        use_bidirectional_attention=None,
    ),
    "gemma4_unified_seeing": _seeing4(
        "Gemma4UnifiedForConditionalGeneration",
        transformers.Gemma4UnifiedConfig,
        _GEMMA4_EMBEDDER,
    ),
    "gemma3_vision": Recipe(
        "Gemma3ForConditionalGeneration",
        transformers.Gemma3Config,
        {
            "text_config": _GEMMA_TEXT | {"num_hidden_layers": 6},
            "vision_config": _SIGLIP,
            "mm_tokens_per_image": 16,
            "image_token_index": 8,
            "boi_token_index": 6,
            "eoi_token_index": 7,
        },
        "gemma",
        approximate=True,
    ),
}

# As above, but with what llama.cpp fixes as published models have it. Its YaRN rounds the
# dimensions between which it blends, gpt-oss's does not: here they are whole, but for a hundredth.
# It does not rotate Qwen3-VL's pairs beyond the sections of rows and columns: here there are none.
FOR_LLAMA_CPP: dict[str, Recipe] = {
    "gemma3_usual": _gemma3(query_pre_attn_scalar=32),
    "gptoss_usual": _gptoss(
        swiglu_limit=7.0,
        rope_parameters=_YARN
        | {"original_max_position_embeddings": 403, "rope_theta": 66_000.0, "truncate": False},
    ),
    "qwen3vl_usual": _qwen3vl(
        "Qwen3VLForConditionalGeneration", transformers.Qwen3VLConfig, sections=[6, 5, 5]
    ),
    "qwen3vlmoe_usual": _qwen3vl(
        "Qwen3VLMoeForConditionalGeneration",
        transformers.Qwen3VLMoeConfig,
        sections=[6, 5, 5],
        **_VL_EXPERTS,
    ),
    "llama4_usual": _llama4(attention_chunk_size=8192, floor_scale=8192, attn_scale=0.1),
}

# These are compared with pictures only: their text is that of qwen35moe, of gemma4 or gemma4_small.
SEEN_ONLY = ("gemma4_seeing", "gemma4_small_seeing", "gemma4_unified_seeing", "qwen35moe_seeing")
DECODERS = [name for name in RECIPES if name not in ("bert", *SEEN_ONLY)]
HYBRIDS = [  # with recurrent layers
    "lfm2",
    "qwen35",
    "qwen35_seeing",
    "qwen35moe",
    "qwen35moe_seeing",
    "qwen3next",
]

_RANKER = RECIPES["bert"].values | {"num_labels": 1}
_XLM_ROBERTA = _RANKER | {"pad_token_id": 1, "type_vocab_size": 1, "max_position_embeddings": 130}
_YES_NO = {"id2label": {0: "yes", 1: "no"}, "label2id": {"yes": 0, "no": 1}}

# Models with a head that scores a query and a document.
RANKERS: dict[str, Recipe] = {
    "bert_ranker": Recipe(
        "BertForSequenceClassification", transformers.BertConfig, _RANKER, "wordpiece_pair"
    ),
    "xlm_roberta_ranker": Recipe(
        "XLMRobertaForSequenceClassification",
        transformers.XLMRobertaConfig,
        _XLM_ROBERTA,
        "unigram",
    ),
    "xlm_roberta": Recipe(
        "XLMRobertaModel", transformers.XLMRobertaConfig, _XLM_ROBERTA, "unigram"
    ),
    "qwen3_ranker": Recipe(
        "Qwen3ForSequenceClassification",
        transformers.Qwen3Config,
        _TEXT | _YES_NO | {"pad_token_id": 0, "sliding_window": None},
        "qwen2",
    ),
}

_TOKENIZERS: dict[str, Callable[[Path], None]] = {
    "unigram": write_unigram,
    "wordpiece_pair": lambda folder: write_wordpiece(folder, has_pairs=True),
    "wordpiece": write_wordpiece,
    "llama3_image": lambda folder: write_byte_level(folder, "llama3", "llama3"),
    "llama4_image": lambda folder: write_byte_level(folder, "llama3", "llama4"),
    "qwen2_image": lambda folder: write_byte_level(folder, "qwen2", "qwen2"),
    "llama3": lambda folder: write_byte_level(folder, "llama3"),
    "qwen2": lambda folder: write_byte_level(folder, "qwen2"),
    "qwen35": lambda folder: write_byte_level(folder, "qwen35"),
    "qwen35_image": lambda folder: write_byte_level(folder, "qwen35", "qwen2"),
    "sentencepiece": write_sentencepiece,
    "gemma": write_gemma,
    "gemma4_image": lambda folder: write_gemma(folder, has_new_marks=True),
}


def make_checkpoint(name: str, folder: Path) -> Path:
    """Write the checkpoint `name` to `folder` and return the folder."""
    return made_once(_key(), name, folder, functools.partial(_make, name))


@functools.cache
def _key() -> str:
    versions = [f"{name} {version(name)}" for name in ("torch", "transformers", "tokenizers")]
    return key_of(["tests/support/checkpoints.py"], versions)


def _make(name: str, folder: Path) -> None:
    recipe = _recipe(name)
    config = recipe.config(**recipe.values)
    config._attn_implementation = "eager"
    model = getattr(transformers, recipe.architecture)(config).float().eval()
    draw_weights(model, recipe.seed)
    model.tie_weights()
    model.save_pretrained(folder)
    _TOKENIZERS[recipe.tokenizer](folder)
    if recipe.processor:
        (folder / "preprocessor_config.json").write_text(json.dumps(recipe.processor))
    if recipe.tokenizer not in ("wordpiece", "wordpiece_pair", "unigram"):  # it generates nothing
        generation = {"bos_token_id": 1, "eos_token_id": [2, 5]}
        (folder / "generation_config.json").write_text(json.dumps(generation))


def load_reference(name: str, folder: Path) -> PreTrainedModel:
    """Return transformers' model of a checkpoint, in float32 with plain attention."""
    model = getattr(transformers, _recipe(name).architecture).from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()


def _recipe(name: str) -> Recipe:
    return (RECIPES | FOR_LLAMA_CPP | RANKERS)[name]


def draw_weights(model: PreTrainedModel, seed: int) -> None:
    """Draw all weights; each tensor has its own generator, so that one more changes no other."""
    owners = dict(model.named_modules())
    gemma = "gemma" in model.config.model_type
    tied = bool(getattr(model.config, "tie_word_embeddings", False))
    for name, parameter in model.named_parameters():
        generator = torch.Generator().manual_seed((zlib.crc32(name.encode()) ^ seed) & 0x7FFFFFFF)
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
        kind = type(owners[name.rpartition(".")[0]]).__name__
        values = _drawn(name, kind, parameter, noise, tied=tied, gemma=gemma)
        with torch.no_grad():
            parameter.copy_(values.to(torch.bfloat16).to(torch.float16).float())
    for name, buffer in model.named_buffers():
        if name.endswith("layer_scalar"):  # as different as layers can be told apart by it
            index = int(name.split(".")[-2])
            buffer.fill_(0.75 + 0.125 * (index % 4))
        elif name.endswith(("input_min", "input_max", "output_min", "output_max")):
            buffer.fill_((-1.0 if name.endswith("min") else 1.25) * (1 + name.count("output")))
        elif name.endswith(("std_bias", "std_scale")):
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            noise = torch.randn(buffer.shape, generator=generator)
            buffer.copy_((noise if name.endswith("bias") else 1 + 0.2 * noise).bfloat16().float())
    for module in owners.values():
        if isinstance(module, torch.nn.Embedding) and module.padding_idx is not None:
            with torch.no_grad():
                module.weight[module.padding_idx].zero_()


def _drawn(
    name: str, kind: str, old: torch.Tensor, noise: torch.Tensor, *, tied: bool, gemma: bool
) -> torch.Tensor:
    """Return the values of one tensor from noise of mean 0 and deviation 1."""
    if "norm" in kind.lower():
        return _drawn_for_norm(name, kind, old, noise, spread=tied, gemma=gemma)
    if name.endswith(("bias", "A_log")):  # of a state that lasts for many tokens
        return noise - 2.0 if name.endswith("A_log") else 0.15 * noise
    if name.endswith(("gate", "gate_attn", "gate_ffn")) and old.numel() == 1:
        return 0.7 + 0.1 * noise
    if "sinks" in name or "experts" in name or "router" in name or "mlp.gate." in name:
        return _drawn_for_mixture(name, old, noise)
    if "embed_tokens" in name:
        if not tied:
            return noise
        # Large ones would make every token predict itself; Gemma multiplies them again.
        return noise * (0.5 / math.sqrt(old.shape[1]) if gemma else 0.1)
    learnt = ("position_embedding", "class_embedding", "positional", "pos_embedding")
    if any(part in name for part in learnt):
        return 0.4 * noise
    if "lm_head" in name:
        return noise * (3.0 / math.sqrt(old.shape[1]))
    inputs = old.shape[0] if "projection_weight" in name else math.prod(old.shape[1:])
    sharp = 1.6 if "q_proj" in name or "k_proj" in name else 1.0
    return noise * (sharp / math.sqrt(inputs))


def _drawn_for_norm(
    name: str, kind: str, old: torch.Tensor, noise: torch.Tensor, *, spread: bool, gemma: bool
) -> torch.Tensor:
    neutral = old.detach().float()  # 1, or 0 where 1 is added in the model
    if spread and name.endswith("model.norm.weight") and "vision" not in name:
        neutral = neutral + (5.0 if gemma else 1.5)  # a tied embedding is small: spread logits
    # Gemma 4 does not scale its scores: the norm of the queries does.
    scale = 0.25 if kind.startswith("Gemma4") and "q_norm" in name else 1.0
    return scale * (neutral + 0.2 * noise)


def _drawn_for_mixture(name: str, old: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Return the values of sinks, routers and experts, all of them in one tensor or each in its."""
    if name.endswith("scale"):
        return 1.0 + 0.2 * noise
    if "sinks" in name:
        return noise
    if "experts" in name and old.ndim >= 2 and not name.endswith("bias"):
        return noise / math.sqrt(min(old.shape[-2:]))
    if "experts" in name:
        return 0.15 * noise
    return noise * (2.0 / math.sqrt(old.shape[-1]))
