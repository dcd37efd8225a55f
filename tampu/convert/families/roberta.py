"""RoBERTa, XLM-RoBERTa and CamemBERT: `bert` in GGUF, without the positions that are never used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tampu.convert.checkpoint import Stored
from tampu.convert.config import Config
from tampu.convert.families.bert import BERT, NAMES, classifier_keys, parameters
from tampu.convert.families.nomic_bert import JINA_BERT_V3_TASKS
from tampu.convert.family import Family, Parameters
from tampu.convert.lazy_tensor import View


def roberta_parameters(config: Config) -> Parameters:
    """Return the keys of `bert`; the first positions are never used, and are left out."""
    keys = parameters(config)
    unused = config.get("pad_token_id", 1)
    length = keys["context_length"]
    if type(unused) is not int or not isinstance(length, int) or not 0 <= unused < length - 1:
        raise config.error("pad_token_id", f"{unused!r} for {length!r} positions")
    return keys | {"context_length": length - unused - 1}


def roberta_classifier_parameters(config: Config) -> Parameters:
    """Return the keys of `bert` with a head; as above."""
    return roberta_parameters(config) | classifier_keys(config)


def used_positions(parameters: Parameters) -> Mapping[str, Mapping[str, View]]:
    """Return the view of the position embeddings from the first that is used on."""
    length = parameters["context_length"]

    def cut(values: Stored) -> Stored:
        return values[len(values) - length :] if isinstance(length, int) else values

    return {"embeddings.position_embeddings.weight": {"position_embd.weight": cut}}


def with_tasks(config: Config) -> Family | None:
    """Return the family of Jina Embeddings v3, whose first checkpoints have this class."""
    return None if config.get("lora_adaptations") is None else JINA_BERT_V3_TASKS


ROBERTA = replace(
    BERT,
    variant=with_tasks,
    checkpoints=tuple(
        f"{name}{head}"
        for name in ("XLMRoberta", "Roberta", "Camembert")
        for head in ("Model", "ForMaskedLM")
    ),
    parameters=roberta_parameters,
    prefixes=(("roberta.", ""),),
    fused=used_positions,
)
ROBERTA_CLASSIFIER = replace(
    ROBERTA,
    checkpoints=tuple(
        f"{name}ForSequenceClassification" for name in ("XLMRoberta", "Roberta", "Camembert")
    ),
    names={**NAMES, "classifier.dense": "cls", "classifier.out_proj": "cls.output"},
    parameters=roberta_classifier_parameters,
)
