"""What lists of models say of each, in llama-server's form."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

from tampu.store.model_info import ModelInfo

_VOCAB_TYPES = {"llama": 1, "gpt2": 2, "gemma4": 2, "bert": 3, "t5": 4}  # `llama_vocab_type`


def model_facts(info: ModelInfo) -> dict[str, Any]:
    """Return what lists of models say of one, from its file alone."""
    metadata = info.metadata
    kinds = {"vision": "image", "audio": "audio"}
    media = [kind for name, kind in kinds.items() if name in info.capabilities]
    tokens = metadata.get("tokenizer.ggml.tokens")
    return {
        "architecture": {
            "input_modalities": ["text", *media],
            "output_modalities": ["text"],
        },
        "meta": {
            "vocab_type": _VOCAB_TYPES.get(metadata.string("tokenizer.ggml.model", ""), 0),
            "n_vocab": len(tokens) if isinstance(tokens, Sized) else 0,
            "n_ctx_train": info.context,
            "n_embd": info.embedding_length,
            "n_params": info.parameters,
            "size": info.size_bytes,
        },
    }
