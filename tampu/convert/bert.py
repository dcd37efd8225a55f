"""BERT and the embedding models made of it: `bert` in GGUF."""

from __future__ import annotations

from tampu.convert.config import Config
from tampu.convert.family import Family, Parameters

_LAYER = "encoder.layer.{}"
NAMES = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.LayerNorm": "token_embd_norm",
    f"{_LAYER}.attention.self.query": "blk.{}.attn_q",
    f"{_LAYER}.attention.self.key": "blk.{}.attn_k",
    f"{_LAYER}.attention.self.value": "blk.{}.attn_v",
    f"{_LAYER}.attention.output.dense": "blk.{}.attn_output",
    f"{_LAYER}.attention.output.LayerNorm": "blk.{}.attn_output_norm",
    f"{_LAYER}.intermediate.dense": "blk.{}.ffn_up",
    f"{_LAYER}.output.dense": "blk.{}.ffn_down",
    f"{_LAYER}.output.LayerNorm": "blk.{}.layer_output_norm",
}


def parameters(config: Config) -> Parameters:
    """Return the keys of `bert`."""
    config.require("hidden_act", ("gelu",), "gelu")
    config.require("position_embedding_type", ("absolute",), "absolute")
    config.require("is_decoder", (False,), default=False)
    width, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    if width % heads:
        raise config.error("hidden_size", f"{width} is not a multiple of {heads} heads")
    return {
        "vocab_size": config.integer("vocab_size"),
        "context_length": config.integer("max_position_embeddings", 512),
        "embedding_length": width,
        "block_count": config.layers(),
        "feed_forward_length": config.integer("intermediate_size"),
        "attention.head_count": heads,
        "attention.layer_norm_epsilon": config.number("layer_norm_eps", 1e-12),
        "attention.causal": False,
    }


BERT = Family(
    architecture="bert",
    checkpoints=("BertModel",),
    names=NAMES,
    parameters=parameters,
    prefixes=(("bert.", ""),),
    ignored=frozenset({"embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias"}),
    tied=True,  # there is no output
)
