"""Checkpoints of models that hear."""

from __future__ import annotations

from dataclasses import replace

import transformers
from support.checkpoints.pictures import RECIPES as PICTURES
from support.checkpoints.recipe import TEXT, Recipe
from support.ultravox import UltravoxConfig, UltravoxModel

_UNIFIED = PICTURES["gemma4_unified_seeing"]
_SMALL = PICTURES["gemma4_small_seeing"]

_QWEN25, _QWEN3 = PICTURES["qwen25vl"], PICTURES["qwen3vlmoe"]
_SOUND_SETTINGS = {
    "feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 32, "n_fft": 400,
    "hop_length": 160, "sampling_rate": 16_000, "n_samples": 480_000, "nb_max_frames": 3000,
    "chunk_length": 30, "dither": 0.0, "padding_side": "right", "padding_value": 0.0,
    "return_attention_mask": True,
}  # fmt: skip
_OMNI_TOKENS = {
    "image_token_id": 7,
    "vision_start_token_id": 6,
    "vision_end_token_id": 8,
    "audio_start_token_id": 9,
    "audio_token_id": 10,
    "audio_end_token_id": 11,
    "video_token_id": 500,
}

GEMMA4_CONFORMER = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "subsampling_conv_channels": [128, 8],  # the first is that of bands, too
    "output_proj_dims": 48,
    "attention_logit_cap": 50.0,
}

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
            "audio_config": GEMMA4_CONFORMER,
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
    "qwen25_omni": Recipe(
        "Qwen2_5OmniThinkerForConditionalGeneration",
        transformers.Qwen2_5OmniThinkerConfig,
        {
            "text_config": _QWEN25.values["text_config"] | {"model_type": "qwen2_5_omni_text"},
            "vision_config": _QWEN25.values["vision_config"],
            "audio_config": {
                "d_model": 64,
                "encoder_layers": 2,
                "encoder_attention_heads": 4,
                "encoder_ffn_dim": 128,
                "num_mel_bins": 32,
                "output_dim": 128,
            },
            **_OMNI_TOKENS,
        },
        "qwen25_omni",
        processor=_SOUND_SETTINGS,
    ),
    "qwen3_omni": replace(
        _QWEN3,
        architecture="Qwen3OmniMoeThinkerForConditionalGeneration",
        config=transformers.Qwen3OmniMoeThinkerConfig,
        values={
            "text_config": _QWEN3.values["text_config"] | {"model_type": "qwen3_omni_moe_text"},
            "vision_config": _QWEN3.values["vision_config"],
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
            **_OMNI_TOKENS,
        },
        tokenizer="qwen3_omni",
        processor={**_QWEN3.processor, **_SOUND_SETTINGS},
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
