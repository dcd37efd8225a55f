"""Granite and MiniCPM: `granite` and `minicpm`, Llama's tensors and four scales."""

from __future__ import annotations

import math

from tampu.convert.config import Config
from tampu.convert.families.llama import NAMES, rope_factors, transform
from tampu.convert.family import Family, Parameters, text_parameters

_SCALINGS = ("none", "linear", "llama3", "yarn", "longrope")


def parameters(config: Config) -> Parameters:
    """Return the keys of `granite`."""
    config.require("hidden_act", ("silu",), "silu")
    return text_parameters(config, scalings=_SCALINGS) | {
        "attention.scale": config.number("attention_multiplier", 1.0),
        "embedding_scale": config.number("embedding_multiplier", 1.0),
        "residual_scale": config.number("residual_multiplier", 1.0),
        "logit_scale": config.number("logits_scaling", 1.0),
    }


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
