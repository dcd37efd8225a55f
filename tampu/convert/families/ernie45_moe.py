"""ERNIE 4.5's mixtures of experts: `ernie4_5-moe`. Checkpoints rotate neighbours, as files do.

Layers of multi-token prediction are left out, as no reader of the architecture has them.
"""

from __future__ import annotations

from tampu.convert.checkpoint import Stored
from tampu.convert.config import Config
from tampu.convert.experts import (
    OF_SOME_LAYERS,
    ROUTER,
    SCORE_BIAS,
    SHARED,
    STACKS,
    without_mtp,
)
from tampu.convert.families.llama import NAMES
from tampu.convert.family import Family, Parameters, text_parameters
from tampu.convert.keys.experts import expert_counts


def parameters(config: Config) -> Parameters:
    """Return the keys of `ernie4_5-moe`, whose readers always renormalize the experts' weights."""
    config.require("hidden_act", ("silu",), "silu")
    config.require("use_bias", (False,), default=False)
    config.require("moe_layer_interval", (1,), 1)  # llama.cpp reads no other
    config.require("moe_gate", ("topk", "top2_fused"), "topk")
    config.get("moe_norm_min")  # the weights of the best experts never have so small a sum
    layers = config.layers()
    config.require("moe_layer_end_index", (None, -1, layers - 1), -1)
    width = config.integer("moe_intermediate_size")
    shared = config.natural("moe_num_shared_experts")
    return {
        **text_parameters(config, scalings=("none", "linear", "yarn")),
        **expert_counts(config, "moe_num_experts", "moe_k"),
        "expert_feed_forward_length": width,
        "expert_shared_count": shared,
        "expert_shared_feed_forward_length": width * shared,
        "interleave_moe_layer_step": 1,
        "leading_dense_block_count": config.natural("moe_layer_start_index", 1),
    }


def only_row(values: Stored) -> Stored:
    """Return the only row of a matrix."""
    return values.reshape(-1)


ERNIE45_MOE = Family(
    architecture="ernie4_5-moe",
    checkpoints=("Ernie4_5_MoeForCausalLM",),
    names=NAMES | ROUTER | SHARED,
    splits={"model.layers.{}.mlp.moe_statics.e_score_correction_bias": {SCORE_BIAS: only_row}},
    stacks=STACKS,
    optional=OF_SOME_LAYERS,
    parameters=parameters,
    gather=without_mtp,
    defaults={"rope_theta": 500_000.0, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5},
    tied=True,
)
