"""EXAONE 3, 3.5 and Deep: `exaone`, Llama's tensors and settings under other names."""

from __future__ import annotations

from tampu.convert.config import Config
from tampu.convert.families.llama import NAMES, rope_factors
from tampu.convert.family import Family, Parameters, text_parameters

_SETTINGS = {
    "num_layers": "num_hidden_layers",
    "activation_function": "hidden_act",
    "layer_norm_epsilon": "rms_norm_eps",
}
_THEIRS = {  # transformers' name of a part for Llama -> the publisher's
    "model.embed_tokens": "transformer.wte",
    "model.norm": "transformer.ln_f",
    "model.layers.{}.input_layernorm": "transformer.h.{}.ln_1",
    "model.layers.{}.post_attention_layernorm": "transformer.h.{}.ln_2",
    "model.layers.{}.self_attn.o_proj": "transformer.h.{}.attn.attention.out_proj",
    "model.layers.{}.mlp.gate_proj": "transformer.h.{}.mlp.c_fc_0",
    "model.layers.{}.mlp.up_proj": "transformer.h.{}.mlp.c_fc_1",
    "model.layers.{}.mlp.down_proj": "transformer.h.{}.mlp.c_proj",
} | {
    f"model.layers.{{}}.self_attn.{part}_proj": f"transformer.h.{{}}.attn.attention.{part}_proj"
    for part in "qkv"
}


def parameters(config: Config) -> Parameters:
    """Return the keys of `exaone`."""
    config = config.renamed(_SETTINGS)
    config.require("hidden_act", ("silu",), "silu")
    return text_parameters(config, scalings=("none", "linear", "llama3"))


EXAONE = Family(
    architecture="exaone",
    checkpoints=("ExaoneForCausalLM",),
    names={_THEIRS.get(name, name): target for name, target in NAMES.items()},
    parameters=parameters,
    generated=rope_factors,
    ignored=frozenset({"transformer.h.{}.attn.attention.rotary.inv_freq"}),
    defaults={"max_position_embeddings": 2048},
)
