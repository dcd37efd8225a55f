"""Checkpoints of Arcee's AFM as GGUF files: what tensors and settings are called there."""

from __future__ import annotations

from tampu.convert.config import Config
from tampu.convert.families.llama import transform
from tampu.convert.family import Family, Parameters, text_parameters


def parameters(config: Config) -> Parameters:
    """Return the file's keys, without `arcee.` before them; refuse what the model cannot do."""
    config.require("hidden_act", ("relu2",), "relu2")
    return text_parameters(config, scalings=("none", "linear", "yarn"))


_ATTENTION, _FEED_FORWARD = "model.layers.{}.self_attn.", "model.layers.{}.mlp."

ARCEE = Family(
    architecture="arcee",
    checkpoints=("ArceeForCausalLM",),
    names={
        "model.embed_tokens": "token_embd",
        "model.layers.{}.input_layernorm": "blk.{}.attn_norm",
        _ATTENTION + "q_proj": "blk.{}.attn_q",
        _ATTENTION + "k_proj": "blk.{}.attn_k",
        _ATTENTION + "v_proj": "blk.{}.attn_v",
        _ATTENTION + "o_proj": "blk.{}.attn_output",
        "model.layers.{}.post_attention_layernorm": "blk.{}.ffn_norm",
        _FEED_FORWARD + "up_proj": "blk.{}.ffn_up",
        _FEED_FORWARD + "down_proj": "blk.{}.ffn_down",
        "model.norm": "output_norm",
        "lm_head": "output",
    },
    parameters=parameters,
    transform=transform,
)
