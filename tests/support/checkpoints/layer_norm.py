"""Checkpoints of decoders of older forms, most of them with LayerNorm."""

from __future__ import annotations

import transformers
from support.checkpoints.recipe import TEXT, Recipe

RECIPES: dict[str, Recipe] = {
    "gemma": Recipe(
        "GemmaForCausalLM",
        transformers.GemmaConfig,
        TEXT | {"rms_norm_eps": 2e-2, "tie_word_embeddings": True},
        "gemma",
        approximate=True,
    ),
}
