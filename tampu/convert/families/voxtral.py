"""Voxtral: a Llama with Whisper's encoder, under llama.cpp's names of audio encoders."""

from __future__ import annotations

from dataclasses import replace

from tampu.convert.audio import PREFIXES, WHISPER_NAMES, WHISPER_SPLITS, encoder_keys
from tampu.convert.config import Config
from tampu.convert.families.llama import LLAMA, parameters
from tampu.convert.family import Parameters
from tampu.convert.keys.sound import SoundSteps
from tampu.convert.vision import PREFIXES as TEXT_PREFIXES

_DEFAULTS = {
    "vocab_size": 131_072, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 30,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "rope_theta": 1e8,
    "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5,
}  # fmt: skip
_TOWER = {
    "hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32,
    "num_attention_heads": 20, "max_source_positions": 1500,
}  # fmt: skip


def keys(config: Config) -> Parameters:
    """Return the keys of `llama` with Voxtral's encoder."""
    config.require("projector_hidden_act", ("gelu",), "gelu")
    text = config.section("text_config")
    text.require("model_type", ("llama",), "llama")
    config.require("hidden_size", (None, text.integer("hidden_size")), None)
    audio = config.section("audio_config").with_defaults(_TOWER)
    audio.integer("max_source_positions")  # as many embeddings the tensor has
    tower = encoder_keys(audio, "voxtral", bins=128, output=text.integer("hidden_size"))
    width, hidden = audio.integer("intermediate_size"), audio.integer("hidden_size")
    if width % hidden:
        raise audio.error("intermediate_size", f"{width} is not a multiple of {hidden}")
    return parameters(text) | tower | {"audio.projector.stack_factor": width // hidden}


VOXTRAL = replace(
    LLAMA,
    checkpoints=("VoxtralForConditionalGeneration",),
    names={
        **LLAMA.names,
        **WHISPER_NAMES,
        "multi_modal_projector.linear_1": "mm.a.mlp.1",
        "multi_modal_projector.linear_2": "mm.a.mlp.2",
    },
    parameters=keys,
    splits=WHISPER_SPLITS,
    defaults=_DEFAULTS,
    prefixes=(*TEXT_PREFIXES, *PREFIXES),
    sound_steps=SoundSteps(),
)
