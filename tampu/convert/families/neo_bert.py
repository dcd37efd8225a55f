"""NeoBERT: `neo-bert`. Its queries, keys and values alternate from head to head."""

from __future__ import annotations

from dataclasses import replace

from tampu.convert.checkpoint import Stored
from tampu.convert.config import Config
from tampu.convert.families.bert import RANK, classifier_keys
from tampu.convert.family import Family, Parameters

_LAYER = "transformer_encoder.{}"
NAMES = {
    "encoder": "token_embd",
    f"{_LAYER}.attention_norm": "blk.{}.attn_norm",
    f"{_LAYER}.qkv": "blk.{}.attn_qkv",
    f"{_LAYER}.wo": "blk.{}.attn_output",
    f"{_LAYER}.ffn_norm": "blk.{}.ffn_norm",
    f"{_LAYER}.ffn.w12": "blk.{}.ffn_up",
    f"{_LAYER}.ffn.w3": "blk.{}.ffn_down",
    "layer_norm": "enc.output_norm",
}
_CLS = 2  # GGUF's number
_MULTIPLE = 8  # of the width of feed-forward parts, which is two thirds of what is stated


def parameters(config: Config) -> Parameters:
    """Return the keys of `neo-bert`."""
    config.require("rope", (True,), default=True)
    config.require("rms_norm", (True,), default=True)
    config.require("ngpt", (False,), default=False)
    config.require("hidden_act", ("swiglu", "SwiGLU"), "swiglu")
    width, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    if width % heads:
        raise config.error("hidden_size", f"{width} is not a multiple of {heads} heads")
    config.require("dim_head", (width // heads,), width // heads)
    stated = int(2 * config.integer("intermediate_size") / 3)
    return {
        "vocab_size": config.integer("vocab_size"),
        "context_length": config.integer("max_length", 1024),
        "embedding_length": width,
        "block_count": config.layers(),
        "feed_forward_length": -(-stated // _MULTIPLE) * _MULTIPLE,
        "attention.head_count": heads,
        "attention.layer_norm_rms_epsilon": config.number("norm_eps", 1e-6),
        "attention.causal": False,
        "rope.freq_base": 10_000.0,
        "rope.scaling.type": "none",
        "pooling_type": _CLS,
    }


def classifier_parameters(config: Config) -> Parameters:
    """Return the keys of `neo-bert` with a head."""
    return parameters(config) | classifier_keys(config) | {"pooling_type": RANK}


def transform(name: str, values: Stored, parameters: Parameters) -> Stored:
    """Return the queries of all heads, then their keys, then their values."""
    heads = parameters["attention.head_count"]
    if not name.endswith("attn_qkv.weight") or not isinstance(heads, int):
        return values
    apart = values.reshape(heads, 3, -1, values.shape[-1])
    return apart.swapaxes(0, 1).reshape(values.shape)


NEO_BERT = Family(
    architecture="neo-bert",
    checkpoints=("NeoBERT", "NeoBERTLMHead"),
    names=NAMES,
    parameters=parameters,
    prefixes=(("model.", ""),),
    ignored=frozenset({"decoder.weight", "decoder.bias"}),  # they predict masked tokens
    transform=transform,
    tied=True,  # encoders have no output projection
)
NEO_BERT_CLASSIFIER = replace(
    NEO_BERT,
    checkpoints=("NeoBERTForSequenceClassification",),
    names={**NAMES, "dense": "cls", "classifier": "cls.output"},
    parameters=classifier_parameters,
    ignored=frozenset(),
)
