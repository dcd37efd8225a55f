"""Laguna: `laguna`, whose layers differ in their heads, their rotation and their window."""

from __future__ import annotations

from tampu.convert.config import Config
from tampu.convert.experts import (
    OF_SOME_LAYERS,
    ROUTER,
    SCORE_BIAS,
    SIGMOID,
    STACKS,
    count_dense_layers,
)
from tampu.convert.families.llama import GATED, NAMES, QK_NORM_NAMES
from tampu.convert.family import Family, Parameters, rotated_features, text_parameters
from tampu.convert.keys.experts import moe_parameters
from tampu.convert.windows import SLIDING, window_flags, window_rope

_LAYER = "model.layers.{}."
_PERIOD = 4  # of the layers without a window, the first of which is one


def parameters(config: Config) -> Parameters:
    """Return the keys of `laguna`."""
    config.require("hidden_act", ("silu",), "silu")
    config.require("moe_router_logit_softcapping", (0, 0.0), 0)
    config.require("moe_apply_router_weight_on_input", (False,), default=False)
    for name in ("gating", "gating_types"):
        config.get(name)  # the tensors' shapes say so
    keys = {
        **text_parameters(config, scalings=("none", "yarn"), rotated_part=1.0),
        "attention.head_count": _heads(config),
        **moe_parameters(config, width="moe_intermediate_size"),
        "expert_shared_feed_forward_length": config.integer("shared_expert_intermediate_size"),
        "expert_gating_func": SIGMOID,
        "expert_weights_scale": config.number("moe_routed_scaling_factor", 1.0),
        "expert_weights_norm": True,
        "leading_dense_block_count": count_dense_layers(config),
    }
    return keys | _windows(config)


def _heads(config: Config) -> list[int]:
    """Return the heads of each layer."""
    layers, heads = config.layers(), config.integer("num_attention_heads")
    stated = config.integers("num_attention_heads_per_layer", [heads] * layers)
    if len(stated) != layers or min(stated) < 1:
        raise config.error("num_attention_heads_per_layer", f"{stated} for {layers} layers")
    return stated


def _windows(config: Config) -> Parameters:
    """Return the window and the rotation of the layers that have one."""
    flags = window_flags(config)
    rope = window_rope(config, flags, is_partial=True)
    if rope is None:
        return {}
    usual = [index % _PERIOD != 0 for index in range(len(flags))]
    return {
        "attention.sliding_window": config.integer("sliding_window", 512),
        "rope.freq_base_swa": rope.base,
        "rope.dimension_count_swa": rotated_features(config, 1.0, layers=SLIDING),
        **({"attention.sliding_window_pattern": flags} if flags != usual else {}),
    }


LAGUNA = Family(
    architecture="laguna",
    checkpoints=("LagunaForCausalLM",),
    names=NAMES
    | QK_NORM_NAMES
    | ROUTER
    | {
        f"{_LAYER}mlp.{shared}.{part}_proj": f"blk.{{}}.ffn_{part}_shexp"
        for shared in ("shared_expert", "shared_experts")
        for part in GATED
    }
    | {
        f"{_LAYER}self_attn.g_proj": "blk.{}.attn_gate",
        f"{_LAYER}mlp.experts.e_score_correction_bias": SCORE_BIAS,
    },
    stacks=STACKS,
    optional=OF_SOME_LAYERS,
    parameters=parameters,
    defaults={"max_position_embeddings": 131_072},
)
