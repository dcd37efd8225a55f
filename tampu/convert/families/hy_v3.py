"""Hy3: `hy_v3`. Layers of multi-token prediction follow the others."""

from __future__ import annotations

from tampu.convert.config import Config
from tampu.convert.experts import (
    MTP_NAMES,
    OF_SOME_LAYERS,
    SIGMOID,
    STACKS,
    count_appended_layers,
    count_dense_layers,
)
from tampu.convert.families.llama import GATED, NAMES, QK_NORM_NAMES
from tampu.convert.family import Family, Parameters, text_parameters
from tampu.convert.keys.experts import moe_parameters

_LAYER = "model.layers.{}."


def parameters(config: Config) -> Parameters:
    """Return the keys of `hy_v3`."""
    config.require("hidden_act", ("silu",), "silu")
    for name in (
        "qk_norm",
        "route_norm",
        "moe_router_use_sigmoid",
        "moe_router_enable_expert_bias",
    ):
        config.require(name, (True,), default=True)
    for name in ("enable_moe_fp32_combine", "enable_attention_fp32_softmax", "enable_lm_head_fp32"):
        config.get(name)  # here these are always in single precision
    shared = config.integer("moe_intermediate_size") * config.integer("num_shared_experts", 1)
    return {
        **text_parameters(config, scalings=("none", "linear", "yarn")),
        **moe_parameters(config, width="moe_intermediate_size"),
        "expert_shared_feed_forward_length": shared,
        "leading_dense_block_count": count_dense_layers(config),
        "expert_gating_func": SIGMOID,
        "expert_weights_norm": True,
        "expert_weights_scale": config.number("router_scaling_factor", 1.0),
    }


HY_V3 = Family(
    architecture="hy_v3",
    checkpoints=("HYV3ForCausalLM",),
    names=NAMES
    | QK_NORM_NAMES
    | MTP_NAMES
    | {
        f"{_LAYER}mlp.{shared}.{part}_proj": f"blk.{{}}.ffn_{part}_shexp"
        for shared in ("shared_mlp", "shared_experts")
        for part in GATED
    }
    | {
        f"{_LAYER}mlp.router.gate": "blk.{}.ffn_gate_inp",
        f"{_LAYER}mlp.expert_bias": "blk.{}.exp_probs_b",  # the name has no ending there
        f"{_LAYER}final_layernorm": "blk.{}.nextn.shared_head_norm",
    },
    stacks=STACKS,
    optional=OF_SOME_LAYERS | {"blk.{}.exp_probs_b"},
    parameters=parameters,
    adapt=count_appended_layers,
    defaults={"max_position_embeddings": 131_072, "rms_norm_eps": 1e-5},
)
