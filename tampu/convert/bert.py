"""BERT and the embedding models made of it: `bert` in GGUF; pooling of sentence-transformers."""

from __future__ import annotations

from tampu.convert.checkpoint import Checkpoint
from tampu.convert.config import Config
from tampu.convert.family import Family, Parameters
from tampu.errors import UnsupportedModelError

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

# The keys of a pooling module's settings, and GGUF's numbers for them.
_KINDS = {"pooling_mode_mean_tokens": 1, "pooling_mode_cls_token": 2, "pooling_mode_lasttoken": 3}
_USUAL = "1_Pooling/config.json"


def pooling_metadata(checkpoint: Checkpoint, architecture: str) -> dict[str, object]:
    """Return the key of the pooling; nothing for a checkpoint that states none."""
    settings = checkpoint.json(_USUAL)
    if settings is None:
        return {} if architecture != "bert" else {f"{architecture}.pooling_type": 1}
    asked = {key for key, value in settings.items() if key.startswith("pooling_mode") and value}
    if len(asked) != 1 or not asked <= _KINDS.keys():
        raise UnsupportedModelError(
            f"{_USUAL}: {', '.join(sorted(asked)) or 'no pooling'}; known is one of "
            f"{', '.join(_KINDS)}"
        )
    return {f"{architecture}.pooling_type": _KINDS[asked.pop()]}
