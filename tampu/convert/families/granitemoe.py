"""Granite 3's mixtures of experts: `granitemoe`, with or without an expert for all tokens.

Experts are stacked in checkpoints, gate and up projections in one tensor.
"""

from __future__ import annotations

from collections.abc import Mapping

from tampu.convert.config import Config
from tampu.convert.families.llama import NAMES_WITHOUT_MLP, transform
from tampu.convert.family import Family, Parameters, text_parameters
from tampu.convert.keys.experts import moe_parameters
from tampu.convert.lazy_tensor import View, nth_part

_LAYER = "model.layers.{}."
_MULTIPLIERS = {
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "attention_multiplier": "attention.scale",
    "logits_scaling": "logit_scale",
}
_SHARED: Mapping[str, Mapping[str, View]] = {
    f"{_LAYER}shared_mlp.input_linear.weight": {
        "blk.{}.ffn_gate_shexp.weight": nth_part(0, axis=0),
        "blk.{}.ffn_up_shexp.weight": nth_part(1, axis=0),
    },
}
_EXPERTS: Mapping[str, Mapping[str, View]] = {
    f"{_LAYER}block_sparse_moe.input_linear.weight": {
        "blk.{}.ffn_gate_exps.weight": nth_part(0, axis=1),
        "blk.{}.ffn_up_exps.weight": nth_part(1, axis=1),
    },
}


def parameters(config: Config) -> Parameters:
    """Return the keys of `granitemoe`."""
    config.require("hidden_act", ("silu",), "silu")
    config.require("position_embedding_type", ("rope", None), "rope")
    shared = config.natural("shared_intermediate_size", 0)
    return {
        **text_parameters(config, scalings=("none", "linear", "yarn")),
        **moe_parameters(config, width="intermediate_size"),
        **({"expert_shared_feed_forward_length": shared} if shared else {}),
        **{ours: config.number(theirs, 1.0) for theirs, ours in _MULTIPLIERS.items()},
    }


GRANITE_MOE = Family(
    architecture="granitemoe",
    checkpoints=("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"),
    names=NAMES_WITHOUT_MLP
    | {
        f"{_LAYER}block_sparse_moe.router.layer": "blk.{}.ffn_gate_inp",
        f"{_LAYER}block_sparse_moe.output_linear": "blk.{}.ffn_down_exps",
        f"{_LAYER}shared_mlp.output_linear": "blk.{}.ffn_down_shexp",
    },
    splits={**_EXPERTS, **_SHARED},
    optional=frozenset(name for parts in _SHARED.values() for name in parts)
    | {"blk.{}.ffn_down_shexp"},
    parameters=parameters,
    transform=transform,
    defaults={"max_position_embeddings": 2048},
)
