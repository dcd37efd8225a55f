"""OLMo 1: `olmo`, Llama's tensors without those of norms."""

from __future__ import annotations

from tampu.convert.config import Config
from tampu.convert.families.llama import NAMES, transform
from tampu.convert.family import Family, Parameters
from tampu.convert.layer_norm import layer_norm_parameters

EPSILON = 1e-5  # of all models; no config.json states it


def parameters(config: Config) -> Parameters:
    """Return the keys of `olmo`."""
    config.require("hidden_act", ("silu",), "silu")
    config = config.changed({**config.values, "layer_norm_eps": EPSILON})
    keys = layer_norm_parameters(config)
    if "clip_qkv" in config:
        keys["attention.clamp_kqv"] = config.number("clip_qkv")
    return keys


OLMO = Family(
    architecture="olmo",
    checkpoints=("OlmoForCausalLM",),
    names={name: target for name, target in NAMES.items() if "norm" not in name},
    parameters=parameters,
    transform=transform,
    defaults={"max_position_embeddings": 2048},
)
