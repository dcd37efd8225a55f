"""Seed-OSS: `seed_oss`, Llama's tensors, of which the second norm has another name in files."""

from __future__ import annotations

from tampu.convert.config import Config
from tampu.convert.families.llama import NAMES
from tampu.convert.family import Family, Parameters, text_parameters


def parameters(config: Config) -> Parameters:
    """Return the keys of `seed_oss`."""
    config.require("hidden_act", ("silu",), "silu")
    config.get("attention_out_bias")  # the tensors show it
    return text_parameters(config, scalings=("none", "linear", "yarn"))


SEED_OSS = Family(
    architecture="seed_oss",
    checkpoints=("SeedOssForCausalLM",),
    names=NAMES | {"model.layers.{}.post_attention_layernorm": "blk.{}.post_attention_norm"},
    parameters=parameters,
    defaults={"max_position_embeddings": 524_288, "head_dim": 128},
)
