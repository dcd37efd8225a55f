"""Mellum 2: `mellum`. Layers of multi-token prediction are left out: no reader has them."""

from __future__ import annotations

from tampu.convert.config import Config
from tampu.convert.experts import STACKS, without_mtp
from tampu.convert.families.llama import QK_NORM_NAMES
from tampu.convert.families.qwen import MOE_NAMES
from tampu.convert.family import Family, Parameters, text_parameters
from tampu.convert.keys.experts import moe_parameters
from tampu.convert.windows import window_flags, window_rope


def parameters(config: Config) -> Parameters:
    """Return the keys of `mellum`, whose readers always renormalize the experts' weights."""
    config.require("hidden_act", ("silu",), "silu")
    config.require("norm_topk_prob", (True,), default=True)
    layers = config.layers()
    config.require("mlp_layer_types", (None, ["sparse"] * layers), None)
    for name in ("mtp_layer_types", "mtp_mlp_layer_types"):
        config.get(name)  # these layers are left out
    return {
        **text_parameters(config, scalings=("none", "yarn")),
        **moe_parameters(config, width="moe_intermediate_size"),
        **_windows(config),
    }


def _windows(config: Config) -> Parameters:
    """Return which layers have a window, and their rotation."""
    flags = window_flags(config)
    rope = window_rope(config, flags)
    if rope is None:
        return {}
    return {
        "attention.sliding_window": config.integer("sliding_window", 1024),
        "attention.sliding_window_pattern": flags,
        "rope.freq_base_swa": rope.base,
    }


MELLUM = Family(
    architecture="mellum",
    checkpoints=("MellumForCausalLM",),
    names=MOE_NAMES | QK_NORM_NAMES,
    stacks=STACKS,
    parameters=parameters,
    gather=without_mtp,
    defaults={"max_position_embeddings": 131_072},
)
