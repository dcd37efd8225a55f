"""Checkpoints of decoders of older forms, most of them with LayerNorm."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import transformers
from support.checkpoints.recipe import CONTEXT, SEED, TEXT, VOCABULARY, Recipe

_NORM = {name: value for name, value in TEXT.items() if name not in ("rms_norm_eps", "head_dim")}
_EQUAL_HEADS = {name: value for name, value in _NORM.items() if name != "num_key_value_heads"}
_TIED = {
    "vocab_size": VOCABULARY,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
_GPT2 = _TIED | {
    "n_embd": 128,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 256,
    "n_inner": 384,
    "layer_norm_epsilon": 1e-2,
}


def _stablelm(**changes: Any) -> Recipe:
    values = _NORM | {"layer_norm_eps": 1e-2, "partial_rotary_factor": 0.5} | changes
    return Recipe("StableLmForCausalLM", transformers.StableLmConfig, values, "qwen2")


def _falcon(*, seed: int = SEED, **changes: Any) -> Recipe:
    values = _NORM | {"layer_norm_epsilon": 1e-2, "tie_word_embeddings": True} | changes
    return Recipe("FalconForCausalLM", transformers.FalconConfig, values, seed=seed)


def _gptneox(**changes: Any) -> Recipe:
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}
    values = _EQUAL_HEADS | {"layer_norm_eps": 1e-2, "rope_parameters": rope} | changes
    return Recipe("GPTNeoXForCausalLM", transformers.GPTNeoXConfig, values)


def _baichuan(layers: int, **changes: Any) -> Recipe:
    values = {name: value for name, value in TEXT.items() if name != "num_key_value_heads"}
    values |= {"num_hidden_layers": layers} | changes
    return Recipe(
        "LlamaForCausalLM",
        transformers.LlamaConfig,
        values,
        "sentencepiece",
        layout="BaichuanForCausalLM",
    )


RECIPES: dict[str, Recipe] = {
    "gemma": Recipe(
        "GemmaForCausalLM",
        transformers.GemmaConfig,
        TEXT | {"rms_norm_eps": 2e-2, "tie_word_embeddings": True},
        "gemma",
        approximate=True,
    ),
    "starcoder2": Recipe(
        "Starcoder2ForCausalLM",
        transformers.Starcoder2Config,
        _NORM
        | {
            "norm_epsilon": 1e-2,
            "use_bias": True,
            "sliding_window": 40,
            "tie_word_embeddings": True,
            "rope_theta": 1e5,
        },
        "qwen2",
        approximate=True,
    ),
    "nemotron": Recipe(
        "NemotronForCausalLM",
        transformers.NemotronConfig,
        _NORM | {"norm_eps": 1e-2, "partial_rotary_factor": 0.5},
    ),
    "stablelm": _stablelm(use_qkv_bias=True),
    "stablelm_12b": _stablelm(use_parallel_residual=True, qk_layernorm=True),
    "phi2": Recipe(
        "PhiForCausalLM",
        transformers.PhiConfig,
        _NORM | {"layer_norm_eps": 1e-2, "partial_rotary_factor": 0.5, "num_key_value_heads": 4},
        approximate=True,
    ),
    "falcon": _falcon(bias=False),
    "falcon_40b": _falcon(new_decoder_architecture=True, num_kv_heads=2, bias=False, seed=3),
    "gptneox": _gptneox(),
    "gptneox_in_turn": _gptneox(use_parallel_residual=False),
    "gpt2": Recipe("GPT2LMHeadModel", transformers.GPT2Config, _GPT2, approximate=True),
    "starcoder": Recipe(
        "GPTBigCodeForCausalLM", transformers.GPTBigCodeConfig, _GPT2, "qwen2", approximate=True
    ),
    "starcoder_equal_heads": Recipe(
        "GPTBigCodeForCausalLM",
        transformers.GPTBigCodeConfig,
        _GPT2 | {"multi_query": False},
        "qwen2",
        approximate=True,
    ),
    "bloom": Recipe(
        "BloomForCausalLM",
        transformers.BloomConfig,
        _TIED
        | {
            "hidden_size": 192,
            "n_layer": 3,
            "n_head": 6,  # not a power of two
            "seq_length": CONTEXT,
            "layer_norm_epsilon": 1e-2,
        },
        approximate=True,
    ),
    "mpt": Recipe(
        "MptForCausalLM",
        transformers.MptConfig,
        _TIED
        | {
            "d_model": 192,
            "n_layers": 3,
            "n_heads": 6,
            "max_seq_len": CONTEXT,
            "attn_config": {"clip_qkv": 1.5},
        },
    ),
    "olmo": Recipe("OlmoForCausalLM", transformers.OlmoConfig, _NORM | {"clip_qkv": 1.5}),
    "gptj": Recipe(
        "GPTJForCausalLM",
        transformers.GPTJConfig,
        _GPT2 | {"rotary_dim": 16, "tie_word_embeddings": False},
        approximate=True,
        refusal="unsupported model architecture",
    ),
    "jais2": Recipe("Jais2ForCausalLM", transformers.Jais2Config, _NORM | {"layer_norm_eps": 1e-2}),
    "internlm2": Recipe(
        "LlamaForCausalLM",
        transformers.LlamaConfig,
        TEXT,
        "sentencepiece",
        layout="InternLM2ForCausalLM",
    ),
    "xverse": Recipe(
        "LlamaForCausalLM", transformers.LlamaConfig, TEXT, layout="XverseForCausalLM"
    ),
    "orion": replace(
        _stablelm(partial_rotary_factor=1.0, rope_theta=1e6), layout="OrionForCausalLM"
    ),
    "codeshell": Recipe(
        "Starcoder2ForCausalLM",
        transformers.Starcoder2Config,
        _NORM | {"norm_epsilon": 1e-2, "use_bias": True},
        "qwen2",
        approximate=True,
        layout="CodeShellForCausalLM",
    ),
    "refact": Recipe(
        "LlamaForCausalLM",
        transformers.LlamaConfig,
        TEXT | {"num_key_value_heads": 1, "intermediate_size": 512},
        "qwen2",
        layout="GPTRefactForCausalLM",
    ),
    "baichuan": _baichuan(3),
}

EMBEDDED = ("gpt2", "starcoder", "starcoder_equal_heads")  # their positions
UNROTATED = (*EMBEDDED, "bloom", "mpt", "refact")

# llama.cpp knows Baichuan's sizes by their layers.
FOR_LLAMA_CPP = {
    f"baichuan{size}_usual": _baichuan(layers, hidden_size=64, intermediate_size=64, head_dim=16)
    for size, layers in (("", 32), ("_13b", 40))
}
