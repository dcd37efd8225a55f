"""Qwen3-ASR: `qwen3vl` with an encoder of sounds and none of images, as in llama.cpp.

Positions have one number in the checkpoint, of which the file's sections are copies. Qwen's own
checkpoints have all of it under `thinker`, and three numbers, which are the same for a sound.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tampu.convert.audio import (
    PREFIXES,
    QWEN_NAMES,
    QWEN_SPLITS,
    published_keys,
    qwen_keys,
    sinusoids,
)
from tampu.convert.config import Config, rope_settings
from tampu.convert.families.qwen import QWEN3
from tampu.convert.families.qwen import parameters as text_keys
from tampu.convert.family import Family, Parameters, no_variant
from tampu.convert.keys.sound import SoundSteps
from tampu.convert.vision import PREFIXES as TEXT_PREFIXES

_DEFAULTS = {
    "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    "max_position_embeddings": 65_536, "vocab_size": 151_936,
}  # fmt: skip
_TOWER = {
    "d_model": 1024, "encoder_layers": 24, "encoder_attention_heads": 16, "encoder_ffn_dim": 4096,
}  # fmt: skip


def keys(config: Config) -> Parameters:
    """Return the keys of `qwen3vl` with an encoder of sounds."""
    text, audio = config.section("text_config"), _audio(config)
    text.require("model_type", ("qwen3", "qwen3_asr_text"), "qwen3")
    config.get("timestamp_token_id")  # of the aligner, another model
    config.get("token_classification_bias")
    third = text.head_size() // 6
    return {
        **text_keys(text),
        "rope.dimension_sections": [text.head_size() // 2 - 2 * third, third, third, 0],
        "n_deepstack_layers": 0,
        **qwen_keys(audio, output=text.integer("hidden_size")),
    }


def generated(config: Config) -> dict[str, npt.NDArray[np.float32]]:
    """Return the embedded positions."""
    return sinusoids(_audio(config).integer("d_model"))


def _thinker(config: Config) -> Config:
    """Return the configuration that Qwen's own checkpoints have one level deeper."""
    config.get("support_languages")
    thinker = config.section("thinker_config")
    for key in ("user_token_id", "audio_start_token_id", "audio_end_token_id"):
        thinker.get(key)  # the vocabulary has them
    published_keys(_audio(thinker))
    rope = rope_settings(thinker.section("text_config"))
    for key in ("mrope_section", "mrope_interleaved", "interleaved"):
        rope.get(key)
    return QWEN3_ASR.complete(thinker)


def _of_qwen(config: Config) -> Family | None:
    return _THINKER if "thinker_config" in config else None


def _audio(config: Config) -> Config:
    return config.section("audio_config").with_defaults(_TOWER)


QWEN3_ASR = Family(
    architecture="qwen3vl",
    checkpoints=("Qwen3ASRForConditionalGeneration",),
    names={
        **QWEN3.names,
        **QWEN_NAMES,
        "multi_modal_projector.linear_1": "mm.a.mlp.1",
        "multi_modal_projector.linear_2": "mm.a.mlp.2",
    },
    parameters=keys,
    splits=QWEN_SPLITS,
    generated=generated,
    tied=True,
    defaults=_DEFAULTS,
    prefixes=(*TEXT_PREFIXES, *PREFIXES),
    sound_steps=SoundSteps(others={"n_window": (50,), "min_length": (8000,)}),
    variant=_of_qwen,
)
_THINKER = replace(
    QWEN3_ASR,
    checkpoints=(),
    names={
        **QWEN3.names,
        **QWEN_NAMES,
        "audio_tower.proj1": "mm.a.mlp.1",
        "audio_tower.proj2": "mm.a.mlp.2",
    },
    parameters=lambda config: keys(_thinker(config)),
    generated=lambda config: generated(_thinker(config)),
    defaults={},
    prefixes=(("thinker.", ""), *QWEN3_ASR.prefixes),
    variant=no_variant,
)
