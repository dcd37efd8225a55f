"""DeepSeek V2, V3 and R1, Kimi K2, GLM-4.7-Flash, Youtu: `deepseek2`, with latent attention.

`kv_b_proj` becomes two tensors: the matrix of the keys of each head, transposed so that queries can
be multiplied by it, and that of the values. Layers of multi-token prediction are left out.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from typing import cast

from tampu.convert.checkpoint import Stored, StoredTensor
from tampu.convert.config import Config, Rope, read_rope
from tampu.convert.families.llama import GATED, NAMES
from tampu.convert.family import Family, Parameters, moe_parameters, text_parameters
from tampu.convert.lazy_tensor import View

_ATTENTION, _MLP = "model.layers.{}.self_attn.", "model.layers.{}.mlp."
_QUERIES = {
    _ATTENTION + "q_proj": "blk.{}.attn_q",
    _ATTENTION + "q_a_proj": "blk.{}.attn_q_a",
    _ATTENTION + "q_a_layernorm": "blk.{}.attn_q_a_norm",
    _ATTENTION + "q_b_proj": "blk.{}.attn_q_b",
}
_KEYS_AND_VALUES = {f"{_ATTENTION}{part}_proj" for part in "kv"}
ATTENTION_NAMES = (
    {
        name: target
        for name, target in NAMES.items()
        if name not in _KEYS_AND_VALUES and "mlp" not in name
    }
    | _QUERIES
    | {
        _ATTENTION + "kv_a_proj_with_mqa": "blk.{}.attn_kv_a_mqa",
        _ATTENTION + "kv_a_layernorm": "blk.{}.attn_kv_a_norm",
    }
)
_DENSE = {f"{_MLP}{part}_proj": f"blk.{{}}.ffn_{part}" for part in GATED}
EXPERT_NAMES = {
    _MLP + "gate": "blk.{}.ffn_gate_inp",
    _MLP + "gate.e_score_correction_bias": "blk.{}.exp_probs_b.bias",
    **{f"{_MLP}shared_experts.{part}_proj": f"blk.{{}}.ffn_{part}_shexp" for part in GATED},
}
_STACKS = {f"{_MLP}experts.{{}}.{part}_proj": f"blk.{{}}.ffn_{part}_exps" for part in GATED}
_MTP_LAYER = re.compile(r"model\.layers\.(\d+)\.(eh_proj|enorm|hnorm|shared_head)\b")
_LAYER = re.compile(r"model\.layers\.(\d+)\.")
_GATING = {"softmax": 1, "sigmoid": 2}  # llama.cpp's numbers
log = logging.getLogger("tampu")


def parameters(config: Config) -> Parameters:
    """Return the keys of `deepseek2`."""
    return latent_keys(config) | _expert_keys(config)


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


def _expert_keys(config: Config) -> Parameters:
    layers = config.layers()
    if "n_routed_experts" not in config:  # all layers are dense
        width = config.integer("intermediate_size")
        shape = {"expert_feed_forward_length": width, "expert_shared_count": 0}
        return {"leading_dense_block_count": layers, **shape}
    is_sigmoid = config.string("topk_method", "noaux_tc") == "noaux_tc"
    config.require("topk_method", ("noaux_tc", "greedy", "group_limited_greedy"), "noaux_tc")
    config.require("scoring_func", (None, "sigmoid" if is_sigmoid else "softmax"), None)
    config.require("moe_layer_freq", (1,), 1)
    found = moe_parameters(
        config.with_defaults({"num_experts": config.integer("n_routed_experts")}),
        width="moe_intermediate_size",
    ) | {
        "leading_dense_block_count": config.integer("first_k_dense_replace", _dense(config)),
        "expert_shared_count": config.integer("n_shared_experts", 0),
        "expert_weights_scale": config.number("routed_scaling_factor", 1.0),
        "expert_gating_func": _GATING["sigmoid" if is_sigmoid else "softmax"],
    }
    renormalize = config.flag("norm_topk_prob", default=is_sigmoid)
    if is_sigmoid or config.get("topk_method") == "group_limited_greedy":
        groups, used = config.integer("n_group", 1), config.integer("topk_group", 1)
        if groups > 1:
            found |= {"expert_group_count": groups, "expert_group_used_count": used}
    return found | ({"expert_weights_norm": True} if renormalize and is_sigmoid else {})


def _dense(config: Config) -> int:
    """Return how many layers at the beginning are dense, as `mlp_layer_types` has it."""
    kinds = config.strings("mlp_layer_types")
    count = next((index for index, kind in enumerate(kinds) if kind != "dense"), len(kinds))
    if "dense" in kinds[count:]:
        raise config.error("mlp_layer_types", "a dense layer comes after one with experts")
    return count


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


def without_mtp_layers(tensors: Iterable[StoredTensor]) -> Iterable[StoredTensor]:
    """Return the tensors without those of the layers that predict several tokens."""
    held = list(tensors)
    dropped = {found[1] for each in held if (found := _MTP_LAYER.match(each.name))}
    if dropped:
        log.warning("layers of multi-token prediction are left out: %s", ", ".join(sorted(dropped)))
    return [
        each for each in held if not ((layer := _LAYER.match(each.name)) and layer[1] in dropped)
    ]


DEEPSEEK2 = Family(
    architecture="deepseek2",
    checkpoints=(
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "Glm4MoeLiteForCausalLM",
        "YoutuForCausalLM",
    ),
    names=ATTENTION_NAMES | _DENSE | EXPERT_NAMES,
    optional=frozenset(
        {*_QUERIES.values(), *_DENSE.values(), *EXPERT_NAMES.values(), *_STACKS.values()}
    ),
    stacks=_STACKS,
    fused=halves_of_kv_b,
    gather=without_mtp_layers,
    parameters=parameters,
)
