"""ERNIE 4.5 without experts: `ernie4_5`, Llama's tensors, rotated as checkpoints have them."""

from __future__ import annotations

from tampu.convert.config import Config
from tampu.convert.families.llama import NAMES
from tampu.convert.family import Family, Parameters, text_parameters


def parameters(config: Config) -> Parameters:
    """Return the keys of `ernie4_5`."""
    config.require("hidden_act", ("silu",), "silu")
    config.get("use_bias")  # the tensors show it
    return text_parameters(config, scalings=("none", "linear", "yarn"))


ERNIE4_5 = Family(
    architecture="ernie4_5",
    checkpoints=("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"),
    names=NAMES,
    parameters=parameters,
    prefixes=(("ernie.", "model."),),
    defaults={"max_position_embeddings": 131_072, "rope_theta": 500_000.0, "head_dim": 128,
              "rms_norm_eps": 1e-5},
    tied=True,
)  # fmt: skip
