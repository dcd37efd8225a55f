"""AFMoE (Trinity): `afmoe`, in which every fourth layer has neither a window nor RoPE."""

from __future__ import annotations

from tampu.convert.config import Config
from tampu.convert.experts import OF_SOME_LAYERS, SCORE_BIAS, SHARED, SIGMOID, STACKS
from tampu.convert.families.llama import NAMES, QK_NORM_NAMES
from tampu.convert.family import Family, Parameters, text_parameters
from tampu.convert.keys.experts import moe_parameters

_LAYER = "model.layers.{}."
_PERIOD = 4  # its readers know no other


def parameters(config: Config) -> Parameters:
    """Return the keys of `afmoe`."""
    config.require("hidden_act", ("silu",), "silu")
    config.require("mup_enabled", (True,), default=False)
    config.require("score_func", ("sigmoid",), "sigmoid")
    config.require("route_norm", (True,), default=True)
    config.require("global_attn_every_n_layers", (_PERIOD,), _PERIOD)
    for groups in ("n_group", "topk_group", "num_expert_groups", "num_limited_groups"):
        config.require(groups, (1, None), 1)
    layers = config.layers()
    kinds = ("sliding_attention", "full_attention")
    usual = [kinds[(index + 1) % _PERIOD == 0] for index in range(layers)]
    if config.strings("layer_types") not in ([], usual):
        raise config.error("layer_types", f"is not full_attention for each {_PERIOD}th layer only")
    return {
        **text_parameters(config, scalings=("none", "linear", "yarn")),
        **moe_parameters(config, width="moe_intermediate_size"),
        "expert_shared_count": config.natural("num_shared_experts", 0),
        "leading_dense_block_count": config.natural("num_dense_layers", 0),
        "expert_gating_func": SIGMOID,
        "expert_weights_scale": config.number("route_scale", 1.0),
        "expert_weights_norm": True,
        "attention.sliding_window": config.integer("sliding_window", 1024),
    }


AFMOE = Family(
    architecture="afmoe",
    checkpoints=("AfmoeForCausalLM",),
    names=NAMES
    | QK_NORM_NAMES
    | SHARED
    | {
        f"{_LAYER}self_attn.gate_proj": "blk.{}.attn_gate",
        f"{_LAYER}post_attention_layernorm": "blk.{}.post_attention_norm",
        f"{_LAYER}pre_mlp_layernorm": "blk.{}.ffn_norm",
        f"{_LAYER}post_mlp_layernorm": "blk.{}.post_ffw_norm",
        f"{_LAYER}mlp.router.gate": "blk.{}.ffn_gate_inp",
        f"{_LAYER}mlp.expert_bias": SCORE_BIAS,
    },
    stacks=STACKS,
    optional=OF_SOME_LAYERS,
    parameters=parameters,
    defaults={"max_position_embeddings": 16_384, "rms_norm_eps": 1e-5},
)
