"""Ling 2 and Ring 2: `bailingmoe2`. Queries, keys and values are one tensor, in files as well."""

from __future__ import annotations

from tampu.convert.config import Config
from tampu.convert.experts import (
    MTP_NAMES,
    OF_SOME_LAYERS,
    ROUTER,
    SCORE_BIAS,
    SHARED,
    STACKS,
    count_appended_layers,
    deepseek_parameters,
)
from tampu.convert.families.llama import GATED
from tampu.convert.family import Family, Parameters, text_parameters

_LAYER = "model.layers.{}."


def parameters(config: Config) -> Parameters:
    """Return the keys of `bailingmoe2`."""
    config.require("hidden_act", ("silu",), "silu")
    for name in ("use_qk_norm", "use_rmsnorm", "moe_router_enable_expert_bias"):
        config.require(name, (True,), default=True)
    for name in ("norm_head", "norm_softmax", "use_sliding_window", "use_bias"):
        config.require(name, (False,), default=False)
    mixture = deepseek_parameters(config, experts="num_experts", shared="num_shared_experts")
    shared = config.integer("moe_intermediate_size") * config.integer("num_shared_experts")
    return {
        **text_parameters(config, scalings=("none", "linear", "yarn"), rotated_part=0.5),
        **mixture,
        "expert_shared_feed_forward_length": config.integer(
            "moe_shared_expert_intermediate_size", shared
        ),
    }


BAILING_MOE_2 = Family(
    architecture="bailingmoe2",
    checkpoints=("BailingMoeV2ForCausalLM",),
    names=ROUTER
    | SHARED
    | MTP_NAMES
    | {f"{_LAYER}mlp.{part}_proj": f"blk.{{}}.ffn_{part}" for part in GATED}
    | {
        "model.word_embeddings": "token_embd",
        f"{_LAYER}input_layernorm": "blk.{}.attn_norm",
        f"{_LAYER}attention.query_key_value": "blk.{}.attn_qkv",
        f"{_LAYER}attention.query_layernorm": "blk.{}.attn_q_norm",
        f"{_LAYER}attention.key_layernorm": "blk.{}.attn_k_norm",
        f"{_LAYER}attention.dense": "blk.{}.attn_output",
        f"{_LAYER}post_attention_layernorm": "blk.{}.ffn_norm",
        f"{_LAYER}mlp.gate.expert_bias": SCORE_BIAS,
        f"{_LAYER}final_layernorm": "blk.{}.layer_output_norm",
        "model.norm": "output_norm",
        "lm_head": "output",
    },
    stacks=STACKS,
    optional=OF_SOME_LAYERS | {"blk.{}.layer_output_norm"},
    parameters=parameters,
    adapt=count_appended_layers,
    defaults={"rope_theta": 600_000.0, "max_position_embeddings": 32_768},
)
