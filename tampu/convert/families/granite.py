"""Granite and MiniCPM: `granite`, `granite_swa`, `minicpm`, Llama's tensors and four scales."""

from __future__ import annotations

import math

from tampu.convert.config import Config
from tampu.convert.families.llama import NAMES, rope_factors, transform
from tampu.convert.family import Family, Parameters, text_parameters
from tampu.convert.windows import window_flags
from tampu.models.granite_swa import ROPE_PATTERN

_SCALINGS = ("none", "linear", "llama3", "yarn", "longrope")


def parameters(config: Config, scalings: tuple[str, ...] = _SCALINGS) -> Parameters:
    """Return the keys of `granite`."""
    config.require("hidden_act", ("silu",), "silu")
    return text_parameters(config, scalings=scalings) | {
        "attention.scale": config.number("attention_multiplier", 1.0),
        "embedding_scale": config.number("embedding_multiplier", 1.0),
        "residual_scale": config.number("residual_multiplier", 1.0),
        "logit_scale": config.number("logits_scaling", 1.0),
    }


def swa_parameters(config: Config) -> Parameters:
    """Return the keys of `granite_swa`, which has one base of RoPE for all layers that rotate."""
    layers = config.layers()
    windows = window_flags(config, [index % 4 != 0 for index in range(layers)])
    keys = parameters(config, ("none", "linear", "yarn"))
    keys |= {
        "attention.sliding_window": config.integer("sliding_window", 128),
        "attention.sliding_window_pattern": windows,
    }
    if "layer_rope_theta" not in config:
        return keys
    bases = config.numbers("layer_rope_theta")
    rotated = sorted({base for base in bases if base})
    if len(bases) != layers or len(rotated) > 1 or min(bases) < 0:
        reason = f"{bases} are not one base or 0 for each of {layers} layers"
        raise config.error("layer_rope_theta", reason)
    base = rotated[0] if rotated else keys["rope.freq_base"]
    return keys | {"rope.freq_base": base, ROPE_PATTERN: [base != 0 for base in bases]}


def minicpm_parameters(config: Config) -> Parameters:
    """Return the keys of `minicpm`, whose scales follow from its width and depth."""
    config.require("hidden_act", ("silu",), "silu")
    config.require("sparse_config", (None,), None)
    config.require("mup_denominator", (config.layers(),), config.layers())
    return text_parameters(config, scalings=_SCALINGS) | {
        "embedding_scale": config.number("scale_emb"),
        "residual_scale": config.number("scale_depth") / math.sqrt(config.layers()),
        "logit_scale": config.integer("hidden_size") / config.number("dim_model_base"),
    }


GRANITE = Family(
    architecture="granite",
    checkpoints=("GraniteForCausalLM",),
    names=NAMES,
    parameters=parameters,
    transform=transform,
    generated=rope_factors,
    defaults={"max_position_embeddings": 2048},
)

GRANITE_SWA = Family(
    architecture="granite_swa",
    checkpoints=("GraniteSWAForCausalLM",),
    names=NAMES | {"model.layers.{}.self_attn.sinks": "blk.{}.attn_sinks.weight"},
    parameters=swa_parameters,
    transform=transform,
    defaults={"max_position_embeddings": 8192, "rms_norm_eps": 1e-5},
    tied=True,
)

MINICPM = Family(
    architecture="minicpm",
    checkpoints=("MiniCPMForCausalLM",),
    names=NAMES,
    parameters=minicpm_parameters,
    transform=transform,
    generated=rope_factors,
    defaults={"max_position_embeddings": 2048},
    tied=True,
)
