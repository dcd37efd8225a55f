"""GLM-4.5 to 4.7 and Solar Open: `glm4moe`. Layers of multi-token prediction follow the others."""

from __future__ import annotations

from dataclasses import replace

from tampu.convert.config import Config
from tampu.convert.experts import (
    DEEPSEEK_NAMES,
    MTP_NAMES,
    OF_SOME_LAYERS,
    STACKS,
    count_appended_layers,
    deepseek_parameters,
)
from tampu.convert.families.llama import QK_NORM_NAMES
from tampu.convert.family import Family, Parameters, text_parameters


def parameters(config: Config) -> Parameters:
    """Return the keys of `glm4moe`."""
    return _keys(config, 0.5)


def solar_parameters(config: Config) -> Parameters:
    """Return the keys for Solar Open, which rotates whole heads and has experts in all layers."""
    width = config.integer("moe_intermediate_size")
    usual = {"intermediate_size": width, "first_k_dense_replace": 0}
    return _keys(config.with_defaults(usual), 1.0)


def _keys(config: Config, rotated: float) -> Parameters:
    """Return the keys; `rotated` is the part of a head if the configuration states none."""
    config.require("hidden_act", ("silu",), "silu")
    config.get("use_qk_norm")  # the tensors say so
    return {
        **text_parameters(config, scalings=("none", "linear", "yarn"), rotated_part=rotated),
        **deepseek_parameters(config),
    }


GLM4_MOE = Family(
    architecture="glm4moe",
    checkpoints=("Glm4MoeForCausalLM",),
    names=DEEPSEEK_NAMES
    | QK_NORM_NAMES
    | MTP_NAMES
    | {"model.layers.{}.post_attention_layernorm": "blk.{}.post_attention_norm"},
    stacks=STACKS,
    optional=OF_SOME_LAYERS.union(QK_NORM_NAMES.values()),
    parameters=parameters,
    adapt=count_appended_layers,
    defaults={"max_position_embeddings": 131_072, "rms_norm_eps": 1e-5},
)

SOLAR_OPEN = replace(
    GLM4_MOE,
    checkpoints=("SolarOpenForCausalLM",),
    parameters=solar_parameters,
    defaults={**GLM4_MOE.defaults, "rope_theta": 1e6},
)
