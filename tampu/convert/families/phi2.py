"""Phi 1 to 2: `phi2`."""

from __future__ import annotations

from tampu.convert.config import Config
from tampu.convert.family import Family, Parameters
from tampu.convert.layer_norm import layer_norm_parameters

_LAYER = "model.layers.{}"


def parameters(config: Config) -> Parameters:
    """Return the keys of `phi2`."""
    config.require("hidden_act", ("gelu_new", "gelu_pytorch_tanh"), "gelu_new")
    config.require("qk_layernorm", (False,), default=False)
    return layer_norm_parameters(config, rotated=0.5)


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
