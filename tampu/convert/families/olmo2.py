"""OLMo 2 and 3: `olmo2`, whose norms are those behind the parts."""

from __future__ import annotations

from tampu.convert.config import Config, read_rope, rope_settings
from tampu.convert.families.llama import NAMES, QK_NORM_NAMES
from tampu.convert.family import Family, Parameters, text_parameters
from tampu.convert.windows import window_flags

_LAYER = "model.layers.{}."
POST_NORM_NAMES = {
    name: target for name, target in NAMES.items() if not name.endswith("layernorm")
} | {
    _LAYER + "post_attention_layernorm": "blk.{}.post_attention_norm",
    _LAYER + "post_feedforward_layernorm": "blk.{}.post_ffw_norm",
}


def parameters(config: Config) -> Parameters:
    """Return the keys of `olmo2`."""
    config.require("hidden_act", ("silu",), "silu")
    return text_parameters(config, scalings=("none", "linear", "yarn"))


def olmo3_parameters(config: Config) -> Parameters:
    """Return the keys with windows, whose layers must have an unscaled RoPE of the same base."""
    keys = parameters(config)
    settings = rope_settings(config)
    if "sliding_attention" in settings:
        local = read_rope(config, layers="sliding_attention")
        if (local.kind, local.base) != ("none", keys["rope.freq_base"]):
            reason = "it is scaled, or has another base than full_attention"
            raise settings.error("sliding_attention", reason)
    usual = [(index + 1) % 4 != 0 for index in range(config.layers())]
    return keys | {
        "attention.sliding_window": config.integer("sliding_window", 4096),
        "attention.sliding_window_pattern": window_flags(config, usual),
    }


OLMO2 = Family(
    architecture="olmo2",
    checkpoints=("Olmo2ForCausalLM",),
    names=POST_NORM_NAMES | QK_NORM_NAMES,
    parameters=parameters,
    defaults={"max_position_embeddings": 2048},
)

OLMO3 = Family(
    architecture="olmo2",
    checkpoints=("Olmo3ForCausalLM",),
    names=POST_NORM_NAMES | QK_NORM_NAMES,
    parameters=olmo3_parameters,
    defaults={"max_position_embeddings": 2048, "rope_theta": 500_000.0},
)
