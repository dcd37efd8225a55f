"""GPT-NeoX and Pythia: `gptneox`, its queries, keys and values in one tensor, in this order."""

from __future__ import annotations

from tampu.convert.config import Config
from tampu.convert.family import Family, Parameters
from tampu.convert.fused import ungroup_attention
from tampu.convert.layer_norm import layer_norm_parameters

_LAYER = "gpt_neox.layers.{}"


def parameters(config: Config) -> Parameters:
    """Return the keys of `gptneox`."""
    config.require("hidden_act", ("gelu",), "gelu")
    rope = {"rotary_pct": "partial_rotary_factor", "rotary_emb_base": "rope_theta"}
    return layer_norm_parameters(config.renamed(rope), rotated=0.25) | {
        "use_parallel_residual": config.flag("use_parallel_residual", default=True)
    }


GPTNEOX = Family(
    architecture="gptneox",
    checkpoints=("GPTNeoXForCausalLM",),
    names={
        "gpt_neox.embed_in": "token_embd",
        f"{_LAYER}.input_layernorm": "blk.{}.attn_norm",
        f"{_LAYER}.attention.query_key_value": "blk.{}.attn_qkv",
        f"{_LAYER}.attention.dense": "blk.{}.attn_output",
        f"{_LAYER}.post_attention_layernorm": "blk.{}.ffn_norm",
        f"{_LAYER}.mlp.dense_h_to_4h": "blk.{}.ffn_up",
        f"{_LAYER}.mlp.dense_4h_to_h": "blk.{}.ffn_down",
        "gpt_neox.final_layer_norm": "output_norm",
        "embed_out": "output",
        "lm_head": "output",
    },
    parameters=parameters,
    ignored=frozenset(
        f"{_LAYER}.attention.{name}" for name in ("bias", "masked_bias", "rotary_emb.inv_freq")
    ),
    transform=ungroup_attention,
    defaults={"max_position_embeddings": 2048},
)
