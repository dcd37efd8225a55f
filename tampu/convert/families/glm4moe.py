"""GLM-4.5 to 4.7: `glm4moe`. Their layers of multi-token prediction are kept after the others."""

from __future__ import annotations

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
    config.require("hidden_act", ("silu",), "silu")
    config.get("use_qk_norm")  # the tensors say so
    return {
        **text_parameters(config, scalings=("none", "linear", "yarn"), rotated_part=0.5),
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
