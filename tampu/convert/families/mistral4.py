"""Mistral Small 4's text: `mistral4`, whose tensors and keys are those of `deepseek2`.

Checkpoints have the experts of a layer in two tensors, of which one is gate and up together.
"""

from __future__ import annotations

from tampu.convert.checkpoint import Stored
from tampu.convert.config import Config, read_rope
from tampu.convert.families.deepseek2 import NAMES, OPTIONAL, halves_of_kv_b, latent_keys
from tampu.convert.family import Family, Parameters
from tampu.convert.keys.experts import moe_parameters

_EXPERTS = "model.layers.{}.mlp.experts."


def parameters(config: Config) -> Parameters:
    """Return the keys of `mistral4`."""
    config.require("first_k_dense_replace", (0,), 0)
    config.require("n_group", (1,), 1)
    config.require("topk_group", (1,), 1)
    config.require("norm_topk_prob", (True,), default=True)
    experts = config.with_defaults({"num_experts": config.integer("n_routed_experts")})
    keys = latent_keys(config) | moe_parameters(experts, width="moe_intermediate_size")
    settings = read_rope(config, is_partial=True).settings
    if "llama_4_scaling_beta" in settings:
        keys["attention.temperature_scale"] = settings.number("llama_4_scaling_beta")
        length = settings.integer("original_max_position_embeddings")
        keys["attention.temperature_length"] = length
    return keys | {
        "leading_dense_block_count": 0,
        "expert_shared_count": config.integer("n_shared_experts", 1),
        "expert_weights_scale": config.number("routed_scaling_factor", 1.0),
        "expert_weights_norm": True,
    }


def whole(values: Stored) -> Stored:
    """Return the values: the tensor is only named otherwise."""
    return values


MISTRAL4 = Family(
    architecture="mistral4",
    checkpoints=("Mistral4ForCausalLM",),
    names=NAMES,
    optional=OPTIONAL,
    splits={
        _EXPERTS + "gate_up_proj": {"blk.{}.ffn_gate_up_exps.weight": whole},
        _EXPERTS + "down_proj": {"blk.{}.ffn_down_exps.weight": whole},
    },
    fused=halves_of_kv_b,
    parameters=parameters,
)
