"""GPT-2 and StarCoder (GPT-BigCode): `gpt2`, `starcoder`, with embedded positions.

GPT-2's checkpoints have the matrices of its layers with inputs as rows.
"""

from __future__ import annotations

from tampu.convert.config import Config
from tampu.convert.family import Family, Parameters
from tampu.convert.fused import ungroup_attention
from tampu.convert.layer_norm import layer_norm_parameters, without_rope
from tampu.convert.lazy_tensor import transposed

NAMES = {
    "wte": "token_embd",
    "wpe": "position_embd",
    "h.{}.ln_1": "blk.{}.attn_norm",
    "h.{}.attn.c_attn": "blk.{}.attn_qkv",
    "h.{}.attn.c_proj": "blk.{}.attn_output",
    "h.{}.ln_2": "blk.{}.ffn_norm",
    "h.{}.mlp.c_fc": "blk.{}.ffn_up",
    "h.{}.mlp.c_proj": "blk.{}.ffn_down",
    "ln_f": "output_norm",
    "lm_head": "output",
}
KEYS = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
}


def parameters(config: Config) -> Parameters:
    """Return the keys of `gpt2`."""
    config = config.renamed(KEYS)
    config.require("activation_function", ("gelu_new", "gelu_pytorch_tanh"), "gelu_new")
    config.require("scale_attn_weights", (True,), default=True)
    config.require("scale_attn_by_inverse_layer_idx", (False,), default=False)
    config.get("n_ctx")  # the same as n_positions
    width = config.integer("intermediate_size", 4 * config.integer("hidden_size"))
    config = config.changed({**config.values, "intermediate_size": width})
    return without_rope(layer_norm_parameters(config, epsilon="layer_norm_epsilon"))


def starcoder_parameters(config: Config) -> Parameters:
    """Return the keys of `starcoder`."""
    if config.flag("multi_query", default=True):
        config = config.changed({**config.values, "num_key_value_heads": 1})
    config.require("activation_function", ("gelu_pytorch_tanh", "gelu_new"), "gelu_pytorch_tanh")
    return parameters(config)


GPT2 = Family(
    architecture="gpt2",
    checkpoints=("GPT2LMHeadModel",),
    names=NAMES,
    parameters=parameters,
    prefixes=(("transformer.", ""),),
    ignored=frozenset({"h.{}.attn.bias", "h.{}.attn.masked_bias"}),
    splits={
        f"{name}.weight": {f"{target}.weight": transposed()}
        for name, target in NAMES.items()
        if ".c_" in name
    },
    defaults={"n_positions": 1024},
    tied=True,
)

STARCODER = Family(
    architecture="starcoder",
    checkpoints=("GPTBigCodeForCausalLM",),
    names=NAMES,
    parameters=starcoder_parameters,
    prefixes=(("transformer.", ""),),
    ignored=frozenset({"h.{}.attn.bias", "h.{}.attn.masked_bias"}),
    transform=ungroup_attention,
    defaults={"n_positions": 1024},
    tied=True,
)
