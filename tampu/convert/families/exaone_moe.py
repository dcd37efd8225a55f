"""K-EXAONE: `exaone-moe`. Layers of multi-token prediction are left out: no reader has them."""

from __future__ import annotations

from tampu.convert.config import Config
from tampu.convert.experts import (
    DEEPSEEK_NAMES,
    OF_SOME_LAYERS,
    SCORE_BIAS,
    STACKS,
    count_dense_layers,
    deepseek_parameters,
    without_mtp,
)
from tampu.convert.families.llama import QK_NORM_NAMES, rope_factors
from tampu.convert.family import Family, Parameters, text_parameters
from tampu.convert.windows import window_flags


def parameters(config: Config) -> Parameters:
    """Return the keys of `exaone-moe`."""
    config.require("hidden_act", ("silu",), "silu")
    config.require("topk_method", ("noaux_tc",), "noaux_tc")
    dense = count_dense_layers(config)
    mixture = deepseek_parameters(
        config.with_defaults({"first_k_dense_replace": dense}),
        experts="num_experts",
        shared="num_shared_experts",
    )
    shared = config.integer("moe_intermediate_size") * config.integer("num_shared_experts")
    return {
        **text_parameters(config, scalings=("none", "llama3")),
        **mixture,
        "leading_dense_block_count": dense,
        "expert_shared_feed_forward_length": shared,
        "attention.sliding_window": config.integer("sliding_window"),
        "attention.sliding_window_pattern": window_flags(config, _usual(config)),
    }


def _usual(config: Config) -> list[bool]:
    """Return which layers have a window, of a pattern such as "LLLG" or a period."""
    layers, pattern = config.layers(), config.get("sliding_window_pattern", 4)
    if isinstance(pattern, str) and pattern:
        letters = (pattern[index % len(pattern)] for index in range(layers))
        return [letter != "G" for letter in letters]
    period = config.integer("sliding_window_pattern", 4)
    return [(index + 1) % period != 0 for index in range(layers)]


EXAONE_MOE = Family(
    architecture="exaone-moe",
    checkpoints=("ExaoneMoEForCausalLM", "ExaoneMoeForCausalLM"),
    names=DEEPSEEK_NAMES
    | QK_NORM_NAMES
    | {"model.layers.{}.mlp.e_score_correction_bias": SCORE_BIAS},
    stacks=STACKS,
    optional=OF_SOME_LAYERS,
    parameters=parameters,
    generated=rope_factors,
    gather=without_mtp,
    defaults={"max_position_embeddings": 2048, "rms_norm_eps": 1e-5},
)
