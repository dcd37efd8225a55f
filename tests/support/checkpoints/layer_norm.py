"""Checkpoints of decoders of older forms, most of them with LayerNorm."""

from __future__ import annotations

import transformers
from support.checkpoints.recipe import TEXT, Recipe

_NORM = {name: value for name, value in TEXT.items() if name not in ("rms_norm_eps", "head_dim")}

RECIPES: dict[str, Recipe] = {
    "gemma": Recipe(
        "GemmaForCausalLM",
        transformers.GemmaConfig,
        TEXT | {"rms_norm_eps": 2e-2, "tie_word_embeddings": True},
        "gemma",
        approximate=True,
    ),
    "starcoder2": Recipe(
        "Starcoder2ForCausalLM",
        transformers.Starcoder2Config,
        _NORM
        | {
            "norm_epsilon": 1e-2,
            "use_bias": True,
            "sliding_window": 40,
            "tie_word_embeddings": True,
            "rope_theta": 1e5,
        },
        "qwen2",
        approximate=True,
    ),
    "nemotron": Recipe(
        "NemotronForCausalLM",
        transformers.NemotronConfig,
        _NORM | {"norm_eps": 1e-2, "partial_rotary_factor": 0.5},
    ),
}
