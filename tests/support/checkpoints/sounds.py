"""Checkpoints of models that hear."""

from __future__ import annotations

from dataclasses import replace

import transformers
from support.checkpoints.pictures import RECIPES as PICTURES
from support.checkpoints.recipe import Recipe

_UNIFIED = PICTURES["gemma4_unified_seeing"]

RECIPES: dict[str, Recipe] = {
    "gemma4_unified_hearing": replace(
        _UNIFIED,
        config=transformers.Gemma4UnifiedConfig,
        values=_UNIFIED.values
        | {
            "audio_config": {"audio_embed_dim": 640, "rms_norm_eps": 2e-2},
            "boa_token_id": 9,
            "eoa_token_id": 10,
            "audio_token_id": 11,
        },
        tokenizer="gemma4_audio",
    ),
}
