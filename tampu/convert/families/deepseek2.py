"""DeepSeek V2, V3 and R1, Kimi K2, GLM-4.7-Flash, Youtu: `deepseek2`, with latent attention.

`kv_b_proj` becomes two tensors: the matrix of the keys of each head, transposed so that queries can
be multiplied by it, and that of the values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from tampu.convert.checkpoint import Stored
from tampu.convert.config import Config, Rope, read_rope
from tampu.convert.experts import (
    DEEPSEEK_NAMES,
    MTP_NAMES,
    OF_SOME_LAYERS,
    STACKS,
    count_appended_layers,
    count_dense_layers,
    deepseek_parameters,
)
from tampu.convert.family import Family, Parameters, text_parameters
from tampu.convert.lazy_tensor import View

_SOFTMAX = 1  # as `SIGMOID`
_ATTENTION = "model.layers.{}.self_attn."
_QUERIES = {
    _ATTENTION + "q_proj": "blk.{}.attn_q",
    _ATTENTION + "q_a_proj": "blk.{}.attn_q_a",
    _ATTENTION + "q_a_layernorm": "blk.{}.attn_q_a_norm",
    _ATTENTION + "q_b_proj": "blk.{}.attn_q_b",
}
LATENT_NAMES = _QUERIES | {
    _ATTENTION + "kv_a_proj_with_mqa": "blk.{}.attn_kv_a_mqa",
    _ATTENTION + "kv_a_layernorm": "blk.{}.attn_kv_a_norm",
}
_REPLACED = frozenset(f"{_ATTENTION}{part}_proj" for part in "kv")
NAMES = {
    name: target for name, target in DEEPSEEK_NAMES.items() if name not in _REPLACED
} | LATENT_NAMES
QUERY_TARGETS = frozenset(_QUERIES.values())
OPTIONAL = OF_SOME_LAYERS | QUERY_TARGETS


def parameters(config: Config) -> Parameters:
    """Return the keys of `deepseek2`."""
    return latent_keys(config) | expert_keys(config)


def latent_keys(config: Config) -> Parameters:
    """Return the keys of a decoder with latent attention, without those of experts."""
    config.require("hidden_act", ("silu",), "silu")
    config.require("attention_bias", (False,), default=False)
    config.require("mlp_bias", (False,), default=False)
    config.require("rope_interleave", (True,), default=True)
    rank, rotated = config.integer("kv_lora_rank", 512), config.integer("qk_rope_head_dim", 64)
    content, value = config.integer("qk_nope_head_dim", 128), config.integer("v_head_dim", 128)
    config.require("head_dim", (None, rotated, content + rotated), None)
    config.require("qk_head_dim", (None, content + rotated), None)
    as_text = config.changed({**config.values, "head_dim": content + rotated})
    part = (rotated + 0.5) / (content + rotated)  # it is rounded down
    keys = text_parameters(as_text, scalings=("none", "yarn"), rotated_part=part)
    if keys["rope.dimension_count"] != rotated:
        raise config.error("partial_rotary_factor", f"is not that of {rotated} features")
    config.require("num_key_value_heads", (keys["attention.head_count"],), None)
    keys |= {
        "attention.head_count_kv": 1,
        "attention.kv_lora_rank": rank,
        "attention.key_length": rank + rotated,
        "attention.value_length": rank,
        "attention.key_length_mla": content + rotated,
        "attention.value_length_mla": value,
    }
    if config.get("q_lora_rank") is not None:
        keys["attention.q_lora_rank"] = config.integer("q_lora_rank")
    return _with_yarn(keys, read_rope(as_text, is_partial=True))


def expert_keys(config: Config) -> Parameters:
    """Return the keys of V2's and V3's experts, or of dense layers alone."""
    if "n_routed_experts" not in config:  # all layers are dense
        width = config.integer("intermediate_size")
        shape = {"expert_feed_forward_length": width, "expert_shared_count": 0}
        return {"leading_dense_block_count": config.layers(), **shape}
    method = config.string("topk_method", "noaux_tc")
    config.require("topk_method", ("noaux_tc", "greedy", "group_limited_greedy"), "noaux_tc")
    config.require("moe_layer_freq", (1,), 1)
    dense = config.with_defaults({"first_k_dense_replace": count_dense_layers(config)})
    if method == "noaux_tc":
        return deepseek_parameters(dense)
    config.require("scoring_func", ("softmax",), "softmax")
    config.require("norm_topk_prob", (False, None), default=None)  # the reference does not do it
    ungrouped = {"n_group": 1, "topk_group": 1} if method == "greedy" else {}
    as_v3 = {**dense.values, **ungrouped, "scoring_func": "sigmoid"}
    keys = deepseek_parameters(dense.changed(as_v3))
    return keys | {"expert_gating_func": _SOFTMAX, "expert_weights_norm": False}


def _with_yarn(keys: Parameters, rope: Rope) -> Parameters:
    """Return the keys with YaRN's: `mscale_all_dim` makes scores grow, not rotated features."""
    strength = rope.settings.get("mscale_all_dim")
    if rope.kind != "yarn" or not strength:
        return keys
    rope.settings.require("mscale", (strength,), None)
    keys.pop("rope.scaling.attn_factor", None)  # it follows from the multiplier
    multiplier = 0.1 * rope.settings.number("mscale_all_dim")
    return keys | {"rope.scaling.yarn_log_multiplier": multiplier}


def halves_of_kv_b(parameters: Parameters) -> Mapping[str, Mapping[str, View]]:
    """Return the views of a layer's `kv_b_proj` (heads * (content + value), rank)."""
    keys = ("attention.head_count", "rope.dimension_count", "attention.key_length_mla")
    heads, rotated, whole = (cast("int", parameters[key]) for key in keys)
    content = whole - rotated

    def per_head(values: Stored) -> Stored:
        return values.reshape(heads, -1, values.shape[-1])

    def key(values: Stored) -> Stored:
        return per_head(values)[:, :content].swapaxes(1, 2)

    def of_values(values: Stored) -> Stored:
        return per_head(values)[:, content:]

    parts = {"blk.{}.attn_k_b.weight": key, "blk.{}.attn_v_b.weight": of_values}
    return {_ATTENTION + "kv_b_proj.weight": parts}


DEEPSEEK2 = Family(
    architecture="deepseek2",
    checkpoints=(
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "Glm4MoeLiteForCausalLM",
        "YoutuForCausalLM",
    ),
    names=NAMES | MTP_NAMES,
    stacks=STACKS,
    optional=OPTIONAL,
    fused=halves_of_kv_b,
    parameters=parameters,
    adapt=count_appended_layers,
)
