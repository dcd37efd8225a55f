"""Checkpoints of encoders of texts, which `test_encoders` compares, and of those that rank."""

from __future__ import annotations

from typing import Any

import transformers
from support.checkpoints.pictures import GEMMA4_TOWER
from support.checkpoints.recipe import CONTEXT, TEXT, VOCABULARY, Recipe
from support.checkpoints.references import (
    AnyConfig,
    JinaBertModel,
    NeoBERT,
    NeoBERTForSequenceClassification,
    NomicBertModel,
)
from support.checkpoints.sounds import GEMMA4_CONFORMER
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

_NOMIC_EXPERTS: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "n_embd": 128,
    "n_inner": 256,
    "n_layer": 4,
    "n_head": 4,
    "n_positions": 2048,
    "max_trained_positions": 2048,
    "type_vocab_size": 1,
    "layer_norm_epsilon": 1e-3,
    "activation_function": "gelu",
    "rotary_emb_base": 700.0,
    "rotary_emb_fraction": 1.0,
    "causal": False,
    "prenorm": False,
    "num_experts": 8,
    "moe_top_k": 2,
    "moe_every_n_layers": 2,
}

_JINA_V2: dict[str, Any] = _TEXT | {
    "layer_norm_eps": 1e-3,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "position_embedding_type": "alibi",
    "feed_forward_type": "geglu",
    "emb_pooler": "mean",
}


def jina_code(name: str) -> dict[str, Any]:
    """Return which of Jina's two forms of its code a checkpoint is for."""
    return {"auto_map": {"AutoModel": f"jinaai/jina-bert-{name}--modeling_bert.JinaBertModel"}}


_NEO_BERT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 383,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "norm_eps": 1e-2,
    "max_length": 256,
    "pad_token_id": 0,
}

_EMBEDDING_GEMMA2: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "global_head_dim": 64,
    "num_global_key_value_heads": 1,
    "sliding_window_pattern": 3,
    "sliding_window": 8,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 2e-2,
    "hidden_size_per_layer_input": 64,
    "embedding_dim": 192,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "bos_token_id": 1,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 5_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 700.0},
    },
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
    "distilbert": Recipe(
        "DistilBertModel",
        transformers.DistilBertConfig,
        {
            "vocab_size": VOCABULARY,
            "dim": 128,
            "hidden_dim": 256,
            "n_layers": 3,
            "n_heads": 4,
            "max_position_embeddings": 128,
        },
        "wordpiece",
    ),
    "roberta": Recipe(
        "RobertaModel",
        transformers.RobertaConfig,
        _TEXT
        | {
            "layer_norm_eps": 1e-3,
            "pad_token_id": 1,
            "type_vocab_size": 1,
            "max_position_embeddings": 130,
        },
        "roberta",
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
    "embedding_gemma2": Recipe(
        "EmbeddingGemma2TextModel",
        transformers.EmbeddingGemma2TextConfig,
        _EMBEDDING_GEMMA2,
        "gemma",
        approximate=True,
    ),
    "nomic_bert_moe": Recipe(
        "NomicBertModel",
        AnyConfig,
        _NOMIC_EXPERTS,
        "unigram",
        model=NomicBertModel,
        differs_in_llama_cpp=True,  # it leaves out what is added to the sum of experts
    ),
    "eurobert": Recipe(
        "EuroBertModel",
        transformers.EuroBertConfig,
        TEXT | {"rope_theta": 700.0, "mask_token_id": 4, "pad_token_id": 0},
    ),
    "jina_v2": Recipe(
        "JinaBertModel",
        AnyConfig,
        _JINA_V2 | jina_code("implementation"),
        "wordpiece",
        model=JinaBertModel,
    ),
    "jina_v2_code": Recipe(
        "JinaBertModel",
        AnyConfig,
        _JINA_V2 | jina_code("qk-post-norm"),
        "roberta",
        model=JinaBertModel,
    ),
    "neo_bert": Recipe("NeoBERT", AnyConfig, _NEO_BERT, "wordpiece", model=NeoBERT),
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
RANKERS["neo_bert_ranker"] = Recipe(
    "NeoBERTForSequenceClassification",
    AnyConfig,
    _NEO_BERT | _ONE_LABEL,
    "wordpiece_pair",
    model=NeoBERTForSequenceClassification,
)

# Its images and sounds are compared by `test_embedded_media`; its text is `embedding_gemma2`'s.
MEDIA = "embedding_gemma2_media"
SEEING: dict[str, Recipe] = {
    MEDIA: Recipe(
        "EmbeddingGemma2Model",
        transformers.EmbeddingGemma2Config,
        {
            # As long as a sound of more than thirty seconds.
            "text_config": _EMBEDDING_GEMMA2 | {"max_position_embeddings": 2 * CONTEXT},
            "vision_config": GEMMA4_TOWER | {"model_type": "gemma4_vision"},
            "audio_config": GEMMA4_CONFORMER | {"model_type": "gemma4_audio"},
            "boi_token_id": 6,
            "eoi_token_id": 7,
            "image_token_id": 8,
            "video_token_id": 500,
            "boa_token_id": 9,
            "eoa_token_index": 10,
            "audio_token_id": 11,
        },
        "embedding_gemma2",
        approximate=True,
        processor={"patch_size": 4, "pooling_kernel_size": 3, "max_soft_tokens": 70},
    )
}
