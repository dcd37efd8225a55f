"""BLOOM and MPT: `bloom`, `mpt`, with ALiBi."""

from __future__ import annotations

from tampu.convert.config import Config
from tampu.convert.family import Family, Parameters
from tampu.convert.fused import ungroup_attention
from tampu.convert.layer_norm import layer_norm_parameters, without_rope

_BLOCK = "blocks.{}"


def bloom_parameters(config: Config) -> Parameters:
    """Return the keys of `bloom`; files of BigScience have older names of some settings."""
    config = config.renamed(
        {
            "n_embed": "hidden_size",
            "n_layer": "num_hidden_layers",
            "n_head": "num_attention_heads",
            "seq_length": "max_position_embeddings",
        }
    )
    config.require("apply_residual_connection_post_layernorm", (False,), default=False)
    size = config.integer("hidden_size")
    config = config.changed({**config.values, "intermediate_size": 4 * size})
    return without_rope(layer_norm_parameters(config, epsilon="layer_norm_epsilon"))


def mpt_parameters(config: Config) -> Parameters:
    """Return the keys of `mpt`; refuse models with embedded positions."""
    config = config.renamed(
        {
            "d_model": "hidden_size",
            "n_layers": "num_hidden_layers",
            "n_heads": "num_attention_heads",
            "max_seq_len": "max_position_embeddings",
        }
    )
    config.require("logit_scale", (None,), None)
    for key in ("no_bias", "learned_pos_emb", "norm_type"):  # the tensors show them
        config.get(key)
    attention = config.section("attn_config") if "attn_config" in config else config.changed({})
    attention.require("attn_type", ("multihead_attention",), "multihead_attention")
    attention.require("alibi", (True,), default=True)
    for key in ("prefix_lm", "qk_ln", "attn_uses_sequence_id"):
        attention.require(key, (False,), default=False)
    attention.require("softmax_scale", (None,), None)
    size = config.integer("hidden_size") * config.integer("expansion_ratio", 4)
    config = config.changed({**config.values, "intermediate_size": size})
    keys = without_rope(layer_norm_parameters(config, epsilon="layer_norm_epsilon"))
    keys["attention.max_alibi_bias"] = attention.number("alibi_bias_max", 8)
    if "clip_qkv" in attention:
        keys["attention.clamp_kqv"] = attention.number("clip_qkv")
    return keys


BLOOM = Family(
    architecture="bloom",
    checkpoints=("BloomForCausalLM",),
    names={
        "word_embeddings": "token_embd",
        "word_embeddings_layernorm": "token_embd_norm",
        "h.{}.input_layernorm": "blk.{}.attn_norm",
        "h.{}.self_attention.query_key_value": "blk.{}.attn_qkv",
        "h.{}.self_attention.dense": "blk.{}.attn_output",
        "h.{}.post_attention_layernorm": "blk.{}.ffn_norm",
        "h.{}.mlp.dense_h_to_4h": "blk.{}.ffn_up",
        "h.{}.mlp.dense_4h_to_h": "blk.{}.ffn_down",
        "ln_f": "output_norm",
        "lm_head": "output",
    },
    parameters=bloom_parameters,
    prefixes=(("transformer.", ""),),
    transform=ungroup_attention,
    defaults={"seq_length": 2048},
    tied=True,
)

MPT = Family(
    architecture="mpt",
    checkpoints=("MptForCausalLM", "MPTForCausalLM"),
    names={
        "wte": "token_embd",
        f"{_BLOCK}.norm_1": "blk.{}.attn_norm",
        f"{_BLOCK}.attn.Wqkv": "blk.{}.attn_qkv",
        f"{_BLOCK}.attn.out_proj": "blk.{}.attn_output",
        f"{_BLOCK}.norm_2": "blk.{}.ffn_norm",
        f"{_BLOCK}.ffn.up_proj": "blk.{}.ffn_up",
        f"{_BLOCK}.ffn.down_proj": "blk.{}.ffn_down",
        "norm_f": "output_norm",
        "lm_head": "output",
    },
    parameters=mpt_parameters,
    prefixes=(("transformer.", ""),),
    defaults={"max_seq_len": 2048},
    tied=True,
)
