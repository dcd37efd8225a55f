"""Phi 1 to 2, GPT-J: `phi2`, `gptj`."""

from __future__ import annotations

from tampu.convert.config import Config
from tampu.convert.families.gpt2 import KEYS
from tampu.convert.family import Family, Parameters
from tampu.convert.layer_norm import layer_norm_parameters

_LAYER = "model.layers.{}"


def parameters(config: Config) -> Parameters:
    """Return the keys of `phi2`."""
    config.require("hidden_act", ("gelu_new", "gelu_pytorch_tanh"), "gelu_new")
    config.require("qk_layernorm", (False,), default=False)
    return layer_norm_parameters(config, rotated=0.5)


def gptj_parameters(config: Config) -> Parameters:
    """Return the keys of `gptj`."""
    config = config.renamed(KEYS)
    config.require("activation_function", ("gelu_new", "gelu_pytorch_tanh"), "gelu_new")
    config.require("rotary", (True,), default=True)
    config.require("scale_attn_weights", (True,), default=True)
    size = config.integer("hidden_size")
    width = config.integer("intermediate_size", 4 * size)
    config = config.changed({**config.values, "intermediate_size": width})
    keys = layer_norm_parameters(config, epsilon="layer_norm_epsilon")
    return keys | {"rope.dimension_count": config.integer("rotary_dim", 64)}


PHI2 = Family(
    architecture="phi2",
    checkpoints=("PhiForCausalLM",),
    names={
        "model.embed_tokens": "token_embd",
        f"{_LAYER}.input_layernorm": "blk.{}.attn_norm",
        **{f"{_LAYER}.self_attn.{part}_proj": f"blk.{{}}.attn_{part}" for part in "qkv"},
        f"{_LAYER}.self_attn.dense": "blk.{}.attn_output",
        f"{_LAYER}.mlp.fc1": "blk.{}.ffn_up",
        f"{_LAYER}.mlp.fc2": "blk.{}.ffn_down",
        "model.final_layernorm": "output_norm",
        "lm_head": "output",
    },
    parameters=parameters,
    defaults={"max_position_embeddings": 2048},
)

GPTJ = Family(
    architecture="gptj",
    checkpoints=("GPTJForCausalLM",),
    names={
        "wte": "token_embd",
        "h.{}.ln_1": "blk.{}.attn_norm",
        **{f"h.{{}}.attn.{part}_proj": f"blk.{{}}.attn_{part}" for part in "qkv"},
        "h.{}.attn.out_proj": "blk.{}.attn_output",
        "h.{}.mlp.fc_in": "blk.{}.ffn_up",
        "h.{}.mlp.fc_out": "blk.{}.ffn_down",
        "ln_f": "output_norm",
        "lm_head": "output",
    },
    parameters=gptj_parameters,
    prefixes=(("transformer.", ""),),
    ignored=frozenset({"h.{}.attn.bias", "h.{}.attn.masked_bias"}),
    defaults={"n_positions": 2048},
)
