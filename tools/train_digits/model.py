"""The model: Qwen3-ASR's class of transformers, with few and small layers."""

from __future__ import annotations

from typing import Any

from transformers import Qwen3ASRConfig, Qwen3ASRForConditionalGeneration

from tools.train_digits.tokenizer import END, SOUND_PAD, TURN_END

BINS = 32
WIDTH = 96
CONTEXT = 2048
CHUNK, POSITIONS = 100, 13  # frames that are convolved together, and what comes out
_SPREAD = 0.1  # of the first weights


def build(vocabulary: int) -> Any:
    """Return the model with random weights."""
    text = {
        "model_type": "qwen3", "vocab_size": vocabulary, "hidden_size": WIDTH,
        "intermediate_size": 192, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "initializer_range": _SPREAD,
        "bos_token_id": None, "eos_token_id": TURN_END, "pad_token_id": END,
    }  # fmt: skip
    audio = {
        "d_model": WIDTH, "encoder_layers": 2, "encoder_attention_heads": 3,
        "encoder_ffn_dim": 192, "num_mel_bins": BINS, "downsample_hidden_size": 16,
        "output_dim": WIDTH, "n_window_infer": 200, "initializer_range": _SPREAD,
    }  # fmt: skip
    config = Qwen3ASRConfig(
        text_config=text, audio_config=audio, audio_token_id=SOUND_PAD, tie_word_embeddings=True,
        eos_token_id=[END, TURN_END], pad_token_id=END, initializer_range=_SPREAD,
        timestamp_token_id=0, dtype="float32",
    )  # fmt: skip
    return Qwen3ASRForConditionalGeneration(config)


def positions(frames: int) -> int:
    """Return how many tokens a sound of so many frames takes: 13 a second."""
    rest = frames % CHUNK
    for _ in range(3):
        rest = -(-rest // 2)
    return frames // CHUNK * POSITIONS + rest


def time_of(position: int) -> float:
    """Return the second in the middle of a position."""
    chunk, index = divmod(position, POSITIONS)
    return chunk + (index + 0.5) * 0.08
