"""StarCoder 2, and Nemotron-4 with Minitron: `starcoder2`, `nemotron`."""

from __future__ import annotations

from tampu.convert.checkpoint import Stored, to_float32
from tampu.convert.config import Config
from tampu.convert.families.llama import NAMES
from tampu.convert.family import Family, Parameters, with_window
from tampu.convert.layer_norm import layer_norm_parameters

_MLP = "model.layers.{}.mlp"
_ATTENTION_NAMES = {name: target for name, target in NAMES.items() if ".mlp." not in name}


def starcoder2_parameters(config: Config) -> Parameters:
    """Return the keys of `starcoder2`; llama.cpp does not read the window."""
    config.require("hidden_act", ("gelu_pytorch_tanh",), "gelu_pytorch_tanh")
    config.get("use_bias")  # the tensors show it
    window = config.integer("sliding_window") if "sliding_window" in config else None
    return with_window(layer_norm_parameters(config, epsilon="norm_epsilon"), window)


def nemotron_parameters(config: Config) -> Parameters:
    """Return the keys of `nemotron`; the oldest files have other names of two settings."""
    config.require("hidden_act", ("relu2",), "relu2")
    config = config.renamed({"rope_percent": "partial_rotary_factor"})
    return layer_norm_parameters(config, epsilon="norm_eps", rotated=0.5)


def add_one(name: str, values: Stored, parameters: Parameters) -> Stored:  # noqa: ARG001
    """Add 1 to the weights of norms, which checkpoints have as their distance from 1."""
    return to_float32(values) + 1 if name.endswith("_norm.weight") else values


STARCODER2 = Family(
    architecture="starcoder2",
    checkpoints=("Starcoder2ForCausalLM",),
    names=_ATTENTION_NAMES | {f"{_MLP}.c_fc": "blk.{}.ffn_up", f"{_MLP}.c_proj": "blk.{}.ffn_down"},
    parameters=starcoder2_parameters,
    defaults={"max_position_embeddings": 4096},
    tied=True,
)

NEMOTRON = Family(
    architecture="nemotron",
    checkpoints=("NemotronForCausalLM",),
    names=_ATTENTION_NAMES
    | {f"{_MLP}.up_proj": "blk.{}.ffn_up", f"{_MLP}.down_proj": "blk.{}.ffn_down"},
    parameters=nemotron_parameters,
    transform=add_one,
    defaults={"max_position_embeddings": 4096},
)
