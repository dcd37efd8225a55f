"""Checkpoints of OLMo 2 as GGUF files: what tensors and settings are called there."""

from __future__ import annotations

from tampu.convert.config import Config
from tampu.convert.family import Family, Parameters, text_parameters


def parameters(config: Config) -> Parameters:
    """Return the file's keys, without `olmo2.` before them; refuse what the model cannot do."""
    config.require("hidden_act", ("silu",), "silu")
    return text_parameters(config, scalings=("none", "linear", "yarn"))


_ATTENTION, _FEED_FORWARD = "model.layers.{}.self_attn.", "model.layers.{}.mlp."

OLMO2 = Family(
    architecture="olmo2",
    checkpoints=("Olmo2ForCausalLM",),
    names={
        "model.embed_tokens": "token_embd",
        _ATTENTION + "q_proj": "blk.{}.attn_q",
        _ATTENTION + "k_proj": "blk.{}.attn_k",
        _ATTENTION + "v_proj": "blk.{}.attn_v",
        _ATTENTION + "o_proj": "blk.{}.attn_output",
        _ATTENTION + "q_norm": "blk.{}.attn_q_norm",
        _ATTENTION + "k_norm": "blk.{}.attn_k_norm",
        "model.layers.{}.post_attention_layernorm": "blk.{}.post_attention_norm",
        _FEED_FORWARD + "gate_proj": "blk.{}.ffn_gate",
        _FEED_FORWARD + "up_proj": "blk.{}.ffn_up",
        _FEED_FORWARD + "down_proj": "blk.{}.ffn_down",
        "model.layers.{}.post_feedforward_layernorm": "blk.{}.post_ffw_norm",
        "model.norm": "output_norm",
        "lm_head": "output",
    },
    parameters=parameters,
)
