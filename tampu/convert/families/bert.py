"""BERT, DistilBERT and what is made of them: `bert` in GGUF.

Classifiers rank if they have one label, or one that is `yes`. BERT's classifier reads the pooler's
output, so both are the head.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

from tampu.convert.checkpoint import StoredTensor
from tampu.convert.config import Config
from tampu.convert.family import Family, Parameters

log = logging.getLogger("tampu")

RANK = 4  # GGUF's number of a pooling by a head
POOLINGS = {"mean": 1, "cls": 2}  # GGUF's numbers of those before a head
LABELS = "classifier.output_labels"
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
    return encoder_parameters(config)


def encoder_parameters(config: Config, *, epsilon: str = "layer_norm_eps") -> Parameters:
    """Return the keys common to encoders with LayerNorm; `epsilon` is its key in config.json."""
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
        "attention.layer_norm_epsilon": config.number(epsilon, 1e-12),
        "attention.causal": False,
    }


_HEADS = ("cls.predictions.", "cls.seq_relationship.", "lm_head.", "vocab_")
_OLD_LEAVES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


def gather(tensors: Iterable[StoredTensor]) -> Iterable[StoredTensor]:
    """Yield the tensors with the names of today, without the heads that predict masked tokens."""
    heads = 0
    for tensor in tensors:
        if tensor.name.startswith(_HEADS):
            heads += 1
            continue
        old = next((old for old in _OLD_LEAVES if tensor.name.endswith(old)), None)
        name = tensor.name.removesuffix(old) + _OLD_LEAVES[old] if old else tensor.name
        yield replace(tensor, name=name)
    if heads:
        log.warning("%d tensors of a head for masked tokens are left out: embeddings only", heads)


BERT = Family(
    architecture="bert",
    checkpoints=("BertModel", "BertForMaskedLM", "BertForPreTraining"),
    gather=gather,
    names=NAMES,
    parameters=parameters,
    prefixes=(("bert.", ""),),
    ignored=frozenset({"embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias"}),
    tied=True,  # encoders have no output projection
)


def classifier_keys(config: Config) -> Parameters:
    """Return the keys of a head that classifies; names that were never given are left out."""
    names = config.get("id2label")
    labels = [names[key] for key in sorted(names, key=int)] if isinstance(names, dict) else []
    usual = [f"LABEL_{index}" for index in range(len(labels))]
    named = labels != usual and all(isinstance(label, str) for label in labels)
    return {"pooling_type": RANK} | ({LABELS: labels} if named and labels else {})


def classifier_parameters(config: Config) -> Parameters:
    """Return the keys of `bert` with a head."""
    return parameters(config) | classifier_keys(config)


BERT_CLASSIFIER = replace(
    BERT,
    checkpoints=("BertForSequenceClassification",),
    names={**NAMES, "pooler.dense": "cls", "classifier": "cls.output"},
    parameters=classifier_parameters,
    ignored=frozenset({"embeddings.position_ids"}),
)


_DISTIL = "transformer.layer.{}"
_DISTIL_KEYS = {
    "hidden_size": "dim", "intermediate_size": "hidden_dim", "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
}  # fmt: skip


def distilbert_parameters(config: Config) -> Parameters:
    """Return the keys of `bert`; positions that follow a formula are stored like learnt ones."""
    config.require("activation", ("gelu",), "gelu")
    config.get("sinusoidal_pos_embds")
    values = {new: config.get(old) for new, old in _DISTIL_KEYS.items()}
    return encoder_parameters(config.changed({**config.values, **values}))


DISTILBERT = replace(
    BERT,
    checkpoints=("DistilBertModel", "DistilBertForMaskedLM"),
    names={
        "embeddings.word_embeddings": "token_embd",
        "embeddings.position_embeddings": "position_embd",
        "embeddings.LayerNorm": "token_embd_norm",
        f"{_DISTIL}.attention.q_lin": "blk.{}.attn_q",
        f"{_DISTIL}.attention.k_lin": "blk.{}.attn_k",
        f"{_DISTIL}.attention.v_lin": "blk.{}.attn_v",
        f"{_DISTIL}.attention.out_lin": "blk.{}.attn_output",
        f"{_DISTIL}.sa_layer_norm": "blk.{}.attn_output_norm",
        f"{_DISTIL}.ffn.lin1": "blk.{}.ffn_up",
        f"{_DISTIL}.ffn.lin2": "blk.{}.ffn_down",
        f"{_DISTIL}.output_layer_norm": "blk.{}.layer_output_norm",
    },
    parameters=distilbert_parameters,
    prefixes=(("distilbert.", ""),),
)
