"""Older decoders' settings: which are carried, which are refused, and fused projections."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tampu.convert import FAMILIES
from tampu.convert.config import Config
from tampu.convert.fused import attention_parts, ungroup_attention
from tampu.errors import ModelFileError, UnsupportedModelError

SIZES: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}
GPT2: dict[str, Any] = {"vocab_size": 32, "n_embd": 16, "n_layer": 2, "n_head": 2}
MPT: dict[str, Any] = {"vocab_size": 32, "d_model": 16, "n_layers": 2, "n_heads": 2}


def keys(checkpoint: str, config: dict[str, Any]) -> dict[str, object]:
    family = FAMILIES[checkpoint]
    return family.parameters(family.complete(Config(config)))


CARRIED: dict[str, tuple[str, dict[str, Any], dict[str, object]]] = {
    "a part of each head": (
        "GPTNeoXForCausalLM",
        SIZES | {"rotary_pct": 0.5, "rotary_emb_base": 500},
        {"rope.dimension_count": 4, "rope.freq_base": 500.0, "use_parallel_residual": True},
    ),
    "the usual part": ("PhiForCausalLM", SIZES, {"rope.dimension_count": 4}),
    "the width that follows": ("GPT2LMHeadModel", GPT2, {"feed_forward_length": 64}),
    "one head of keys": ("GPTBigCodeForCausalLM", GPT2, {"attention.head_count_kv": 1}),
    "equal heads": (
        "GPTBigCodeForCausalLM",
        GPT2 | {"multi_query": False},
        {"attention.head_count_kv": 2},
    ),
    "Falcon 7B's heads": (
        "FalconForCausalLM",
        SIZES | {"num_kv_heads": 2},
        {"attention.head_count_kv": 1, "tensor_data_layout": "jploski"},
    ),
    "Falcon 40B's heads": (
        "FalconForCausalLM",
        SIZES | {"num_kv_heads": 2, "new_decoder_architecture": True},
        {"attention.head_count_kv": 2},
    ),
    "BigScience's names": (
        "BloomForCausalLM",
        {"vocab_size": 32, "n_embed": 16, "n_layer": 2, "num_attention_heads": 2},
        {"embedding_length": 16, "context_length": 2048},
    ),
    "the slopes and the limit": (
        "MptForCausalLM",
        MPT | {"attn_config": {"alibi_bias_max": 16, "clip_qkv": 6}},
        {"attention.max_alibi_bias": 16.0, "attention.clamp_kqv": 6.0},
    ),
    "a limit of OLMo": (
        "OlmoForCausalLM",
        SIZES | {"clip_qkv": 8.0},
        {"attention.clamp_kqv": 8.0, "attention.layer_norm_epsilon": 1e-5},
    ),
    "a dynamic scaling": (
        "InternLM2ForCausalLM",
        SIZES | {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
        {"context_length": 64, "rope.freq_base": 10_000.0},
    ),
}


@pytest.mark.parametrize("case", CARRIED)
def test_settings_become_keys(case: str) -> None:
    checkpoint, config, expected = CARRIED[case]
    found = keys(checkpoint, config)
    assert {key: found.get(key) for key in expected} == expected


@pytest.mark.parametrize("checkpoint", ["GPT2LMHeadModel", "GPTBigCodeForCausalLM"])
def test_what_rotates_nothing_has_no_keys_of_rope(checkpoint: str) -> None:
    assert not [key for key in keys(checkpoint, GPT2) if key.startswith("rope")]


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "ALiBi in Falcon": ("FalconForCausalLM", SIZES | {"alibi": True}, "alibi is True"),
    "Falcon's parts in turn": (
        "FalconForCausalLM",
        SIZES | {"parallel_attn": False},
        "parallel_attn is False",
    ),
    "norms in Phi": ("PhiForCausalLM", SIZES | {"qk_layernorm": True}, "qk_layernorm is True"),
    "another activation": ("GPT2LMHeadModel", GPT2 | {"activation_function": "relu"}, "'relu'"),
    "a scale by layer": (
        "GPT2LMHeadModel",
        GPT2 | {"scale_attn_by_inverse_layer_idx": True},
        "scale_attn_by_inverse_layer_idx is True",
    ),
    "MPT with embedded positions": (
        "MptForCausalLM",
        MPT | {"attn_config": {"alibi": False}},
        "attn_config: alibi is False",
    ),
    "norms in MPT": ("MptForCausalLM", MPT | {"attn_config": {"qk_ln": True}}, "qk_ln is True"),
    "BLOOM's other residual": (
        "BloomForCausalLM",
        SIZES | {"apply_residual_connection_post_layernorm": True},
        "apply_residual_connection_post_layernorm is True",
    ),
    "an odd part of a head": (
        "StableLmForCausalLM",
        SIZES | {"partial_rotary_factor": 0.4},
        "partial_rotary_factor",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_change_numbers_is_refused_by_name(case: str) -> None:
    checkpoint, config, message = REFUSED[case]
    with pytest.raises((ModelFileError, UnsupportedModelError), match=message):
        keys(checkpoint, config)


def test_fused_projections_are_put_in_the_order_of_files() -> None:
    parameters: dict[str, object] = {"attention.head_count": 4, "attention.head_count_kv": 2}
    rows = np.array([0, 1, 20, 30, 2, 3, 21, 31])  # heads of one feature, in two groups
    found = ungroup_attention("blk.0.attn_qkv.bias", rows, parameters)
    assert found.tolist() == [0, 1, 2, 3, 20, 21, 30, 31]
    assert ungroup_attention("blk.0.attn_output.bias", rows, parameters) is rows
    (parts,) = attention_parts("layers.{}.wqkv.weight", parameters).values()
    assert {name: view(rows).tolist() for name, view in parts.items()} == {
        "blk.{}.attn_q.weight": [0, 1, 2, 3],
        "blk.{}.attn_k.weight": [20, 21],
        "blk.{}.attn_v.weight": [30, 31],
    }
