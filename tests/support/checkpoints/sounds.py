"""Checkpoints of models that hear."""

from __future__ import annotations

from dataclasses import replace

import transformers
from support.checkpoints.pictures import RECIPES as PICTURES
from support.checkpoints.recipe import TEXT, Recipe
from support.ultravox import UltravoxConfig, UltravoxModel

_UNIFIED = PICTURES["gemma4_unified_seeing"]
_SMALL = PICTURES["gemma4_small_seeing"]

_LLAMA = TEXT | {"model_type": "llama", "num_hidden_layers": 2}
_WHISPER = {
    "d_model": 64,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "max_source_positions": 100,  # windows of two seconds
}

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
    "gemma4_small_hearing": replace(
        _SMALL,
        values=_SMALL.values
        | {
            "audio_config": {
                "hidden_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "subsampling_conv_channels": [128, 8],  # the first is that of bands, too
                "output_proj_dims": 48,
                "attention_logit_cap": 50.0,
            },
            "boa_token_id": 9,
            "eoa_token_id": 10,
            "audio_token_id": 11,
        },
        tokenizer="gemma4_audio",
    ),
    "ultravox": Recipe(
        "UltravoxModel",
        UltravoxConfig,
        {
            "text_config": _LLAMA,
            "audio_config": _WHISPER | {"model_type": "whisper", "num_mel_bins": 80},
            "hidden_size": 96,
        },
        "llama3_audio",
        model=UltravoxModel,
    ),
    "voxtral": Recipe(
        "VoxtralForConditionalGeneration",
        transformers.VoxtralConfig,
        {
            "text_config": _LLAMA,
            "audio_config": {
                "hidden_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "intermediate_size": 256,
                "num_mel_bins": 128,
                "max_source_positions": 100,
            },
            "audio_token_id": 7,
        },
        "llama3_audio",
        processor={"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 128},
    ),
    "qwen3_asr": Recipe(
        "Qwen3ASRForConditionalGeneration",
        transformers.Qwen3ASRConfig,
        {
            "text_config": TEXT | {"model_type": "qwen3", "num_hidden_layers": 2},
            "audio_config": {
                "d_model": 64,
                "encoder_layers": 2,
                "encoder_attention_heads": 4,
                "encoder_ffn_dim": 128,
                "num_mel_bins": 32,
                "downsample_hidden_size": 24,
                "output_dim": 128,
                "n_window_infer": 200,  # windows of two seconds
            },
            "audio_token_id": 7,
            "tie_word_embeddings": False,
        },
        "qwen2_audio",
        processor={"feature_extractor_type": "Qwen3ASRFeatureExtractor", "feature_size": 32},
    ),
}
