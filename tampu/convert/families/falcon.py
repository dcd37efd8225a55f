"""Falcon: `falcon`, its queries, keys and values in one tensor, in this order."""

from __future__ import annotations

from tampu.convert.config import Config
from tampu.convert.family import Family, Parameters
from tampu.convert.fused import ungroup_attention
from tampu.convert.layer_norm import layer_norm_parameters

NAMES = {
    "word_embeddings": "token_embd",
    "h.{}.input_layernorm": "blk.{}.attn_norm",
    "h.{}.ln_mlp": "blk.{}.attn_norm",
    "h.{}.ln_attn": "blk.{}.attn_norm_2",
    "h.{}.self_attention.query_key_value": "blk.{}.attn_qkv",
    "h.{}.self_attention.dense": "blk.{}.attn_output",
    "h.{}.mlp.dense_h_to_4h": "blk.{}.ffn_up",
    "h.{}.mlp.dense_4h_to_h": "blk.{}.ffn_down",
    "ln_f": "output_norm",
    "lm_head": "output",
}


def parameters(config: Config) -> Parameters:
    """Return the keys of `falcon`; refuse the models without RoPE, which are built otherwise."""
    config = config.renamed({"n_layer": "num_hidden_layers", "n_head": "num_attention_heads"})
    config.require("activation", ("gelu",), "gelu")
    config.require("alibi", (False,), default=False)
    config.get("bias")  # the tensors show it, and which norms there are
    config.get("num_ln_in_parallel_attn")
    is_new = config.flag("new_decoder_architecture", default=False)
    config.require("parallel_attn", (True, False) if is_new else (True,), default=True)
    heads = config.integer("num_attention_heads")
    shared = config.flag("multi_query", default=True) and not is_new
    kv_heads = config.integer("num_kv_heads", config.integer("n_head_kv", heads))
    size = config.integer("hidden_size")
    values = {
        "num_key_value_heads": 1 if shared else kv_heads,
        "intermediate_size": config.integer("ffn_hidden_size", 4 * size),
    }
    config = config.changed({**config.values, **values})
    return layer_norm_parameters(config, epsilon="layer_norm_epsilon") | {
        "tensor_data_layout": "jploski"  # queries, keys and values are not grouped by heads
    }


FALCON = Family(
    architecture="falcon",
    checkpoints=("FalconForCausalLM", "RWForCausalLM"),
    names=NAMES,
    parameters=parameters,
    prefixes=(("transformer.", ""),),
    optional=frozenset({"blk.{}.attn_norm_2"}),
    transform=ungroup_attention,
    defaults={"max_position_embeddings": 2048},
    tied=True,
)
