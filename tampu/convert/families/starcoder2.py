"""StarCoder 2, Nemotron-4 with Minitron, Jais 2, CodeShell: no gate in the feed-forward part."""

from __future__ import annotations

from dataclasses import replace

from tampu.convert.checkpoint import Stored, to_float32
from tampu.convert.config import Config
from tampu.convert.families.gpt2 import KEYS
from tampu.convert.families.gpt2 import NAMES as GPT2_NAMES
from tampu.convert.families.llama import NAMES
from tampu.convert.family import Family, Parameters, unchanged, with_window
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


def jais2_parameters(config: Config) -> Parameters:
    """Return the keys of `jais2`."""
    config.require("hidden_act", ("relu2",), "relu2")
    return layer_norm_parameters(config)


def codeshell_parameters(config: Config) -> Parameters:
    """Return the keys of `codeshell`."""
    config = config.renamed(KEYS | {"num_query_groups": "num_key_value_heads"})
    config.require("activation_function", ("gelu_pytorch_tanh",), "gelu_pytorch_tanh")
    config.require("position_embedding_type", ("rope",), "rope")
    config.require("scale_attn_weights", (True,), default=True)
    config.get("group_query_attention")  # the number of groups shows it
    width = config.integer("intermediate_size", 4 * config.integer("hidden_size"))
    config = config.changed({**config.values, "intermediate_size": width})
    return layer_norm_parameters(config, epsilon="layer_norm_epsilon")


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

JAIS2 = replace(
    NEMOTRON,
    architecture="jais2",
    checkpoints=("Jais2ForCausalLM",),
    parameters=jais2_parameters,
    transform=unchanged,
    defaults={"max_position_embeddings": 8192},
)

CODESHELL = Family(
    architecture="codeshell",
    checkpoints=("CodeShellForCausalLM",),
    names={name: target for name, target in GPT2_NAMES.items() if name != "wpe"},
    parameters=codeshell_parameters,
    prefixes=(("transformer.", ""),),
    ignored=frozenset({"h.{}.attn.rotary_emb.inv_freq"}),
    defaults={"n_positions": 8192},
)
