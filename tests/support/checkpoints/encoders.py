"""Checkpoints of encoders of texts, which `test_encoders` compares, and of those that rank."""

from __future__ import annotations

from typing import Any

import transformers
from support.checkpoints.recipe import CONTEXT, VOCABULARY, Recipe
from support.checkpoints.text import GEMMA_TEXT

_TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": 0,
}

_MODERN_BERT: dict[str, Any] = _TEXT | {
    "num_hidden_layers": 4,
    "norm_eps": 1e-3,
    "local_attention": 16,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 160_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 2_000.0},
    },
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
}

RECIPES: dict[str, Recipe] = {
    "modern_bert": Recipe(
        "ModernBertModel", transformers.ModernBertConfig, _MODERN_BERT, "modern_bert"
    ),
    "granite_embedding": Recipe(  # R2: as ModernBERT, with SiLU
        "ModernBertModel",
        transformers.ModernBertConfig,
        _MODERN_BERT | {"hidden_activation": "silu"},
        "modern_bert",
    ),
    "nomic_bert": Recipe(
        "NomicBertModel",
        transformers.NomicBertConfig,
        _TEXT | {"layer_norm_eps": 1e-3, "rope_theta": 700.0},
        "wordpiece",
    ),
    "jina_v3": Recipe(
        "JinaEmbeddingsV3Model",
        transformers.JinaEmbeddingsV3Config,
        _TEXT | {"layer_norm_eps": 1e-3, "pad_token_id": 1, "rope_theta": 700.0},
        "unigram",
    ),
    "embedding_gemma": Recipe(
        "Gemma3TextModel",
        transformers.Gemma3TextConfig,
        GEMMA_TEXT | {"use_bidirectional_attention": True, "query_pre_attn_scalar": 32},
        "gemma",
        approximate=True,
        dense=(192, 128),
    ),
}

_ONE_LABEL = {"num_labels": 1}

RANKERS: dict[str, Recipe] = {
    f"modern_bert_ranker_{pooling}": Recipe(
        "ModernBertForSequenceClassification",
        transformers.ModernBertConfig,
        _MODERN_BERT | _ONE_LABEL | {"classifier_pooling": pooling},
        "modern_bert",
    )
    for pooling in ("cls", "mean")
}
