"""MiniMax-M2: `minimax-m2`."""

from __future__ import annotations

from typing import cast

from tampu.convert.config import Config
from tampu.convert.experts import SCORE_BIAS, SIGMOID
from tampu.convert.families.llama import MIXTRAL, NAMES_WITHOUT_MLP, QK_NORM_NAMES
from tampu.convert.family import Family, Parameters, text_parameters
from tampu.convert.keys.experts import moe_parameters

_MOE = "model.layers.{}.block_sparse_moe."


def parameters(config: Config) -> Parameters:
    """Return the keys of `minimax-m2`, whose readers always renormalize the experts' weights."""
    config.require("hidden_act", ("silu",), "silu")
    config.require("scoring_func", ("sigmoid",), "sigmoid")
    config.require("use_qk_norm", (True,), default=True)
    config.require("qk_norm_type", ("per_layer",), "per_layer")  # all heads of a layer together
    config.require("use_routing_bias", (True,), default=True)
    config.require("shared_intermediate_size", (0,), 0)
    for part in ("full_attention", "linear_attention", "mlp"):
        config.require(f"layernorm_{part}_beta", (1, 1.0), 1.0)
    for name in ("mlp_intermediate_size", "shared_moe_mode"):
        config.get(name)  # dense layers and shared experts: the model has neither
    layers = config.layers()
    full = [1] * layers
    if config.integers("attn_type_list", full) != full:
        raise config.error("attn_type_list", f"is not 1 for all {layers} layers")
    keys = text_parameters(config, scalings=("none", "linear", "yarn"), rotated_part=1.0)
    rotated = cast("int", keys["rope.dimension_count"])
    return {
        **keys,
        "rope.dimension_count": config.integer("rotary_dim", rotated),
        **moe_parameters(config, width="intermediate_size"),
        "expert_gating_func": SIGMOID,
    }


MINIMAX_M2 = Family(
    architecture="minimax-m2",
    checkpoints=("MiniMaxM2ForCausalLM",),
    names=NAMES_WITHOUT_MLP
    | QK_NORM_NAMES
    | {
        f"{_MOE}gate": "blk.{}.ffn_gate_inp",
        f"{_MOE}e_score_correction_bias": SCORE_BIAS,
    },
    stacks=MIXTRAL.stacks,
    parameters=parameters,
    defaults={"rope_theta": 5e6, "max_position_embeddings": 196_608},
)
