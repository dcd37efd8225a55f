"""Jina Embeddings v2: `jina-bert-v2`, in its two forms.

The models for code and for two languages have norms of queries and keys, one norm more after the
attention, and the halves of the feed-forward part's first matrix in another order.
"""

from __future__ import annotations

import numpy as np

from tampu.convert.checkpoint import Stored
from tampu.convert.config import Config
from tampu.convert.families.bert import NAMES as BERT_NAMES
from tampu.convert.families.bert import encoder_parameters, gather
from tampu.convert.family import Family, Parameters

_LAYER = "encoder.layer.{}"
_OPTIONAL = {
    f"{_LAYER}.attention.self.layer_norm_q": "blk.{}.attn_q_norm",
    f"{_LAYER}.attention.self.layer_norm_k": "blk.{}.attn_k_norm",
    f"{_LAYER}.layer_norm_1": "blk.{}.attn_norm_2",
}
_REPLACED = ("position_embeddings", f"{_LAYER}.intermediate", f"{_LAYER}.output.")
NAMES = {
    **{name: new for name, new in BERT_NAMES.items() if not any(p in name for p in _REPLACED)},
    **_OPTIONAL,
    f"{_LAYER}.mlp.gated_layers": "blk.{}.ffn_up",
    f"{_LAYER}.mlp.wo": "blk.{}.ffn_down",
    f"{_LAYER}.mlp.layernorm": "blk.{}.layer_output_norm",
    f"{_LAYER}.mlp.down_layer": "blk.{}.ffn_down",
    f"{_LAYER}.layer_norm_2": "blk.{}.layer_output_norm",
}


def parameters(config: Config) -> Parameters:
    """Return the keys of `jina-bert-v2`."""
    config.require("hidden_act", ("gelu",), "gelu")
    config.require("feed_forward_type", ("geglu",), "original")
    config.require("position_embedding_type", ("alibi",), "absolute")
    config.require("emb_pooler", ("mean", None), None)
    return encoder_parameters(config)


def gate_first(values: Stored) -> Stored:
    """Return the half with the activation before the other."""
    plain, gate = np.split(values, 2)
    return np.concatenate([gate, plain])


JINA_BERT_V2 = Family(
    architecture="jina-bert-v2",
    checkpoints=("JinaBertModel", "JinaBertForMaskedLM"),
    names=NAMES,
    parameters=parameters,
    gather=gather,
    splits={f"{_LAYER}.mlp.up_gated_layer.weight": {"blk.{}.ffn_up.weight": gate_first}},
    prefixes=(("bert.", ""),),
    ignored=frozenset({"embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias"}),
    optional=frozenset(_OPTIONAL.values()),
    tied=True,  # encoders have no output projection
)
