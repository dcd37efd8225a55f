"""Ultravox: a Llama with Whisper's encoder and a gated projector.

Published checkpoints lack the text model, which they name; here it must be in the checkpoint.
"""

from __future__ import annotations

from dataclasses import replace

from tampu.convert.audio import PREFIXES, WHISPER_NAMES, WHISPER_SPLITS, encoder_keys
from tampu.convert.config import Config
from tampu.convert.families.llama import LLAMA, parameters
from tampu.convert.family import Parameters
from tampu.convert.vision import PREFIXES as TEXT_PREFIXES

_PROJECTOR = {"ln_pre": "norm_pre", "linear_1": "mlp.1", "ln_mid": "norm_mid", "linear_2": "mlp.2"}


def keys(config: Config) -> Parameters:
    """Return the keys of `llama` with Ultravox's encoder, from version 0.5 on."""
    config.require("projector_act", ("swiglu",), "swiglu")
    config.require("projector_ln_mid", (True,), default=False)  # 0.4 has its norm elsewhere
    config.require("audio_latency_block_size", (None,), None)
    text, audio = config.section("text_config"), config.section("audio_config")
    text.require("model_type", ("llama",), "llama")
    audio.require("model_type", ("whisper",), "whisper")
    for key in ("is_encoder_decoder", "tie_word_embeddings"):  # of Whisper as a whole
        audio.require(key, (True, False), default=True)
    config.integer("hidden_size", 4096)  # of the projector: its tensors have it
    audio.integer("max_source_positions", 1500)  # as many embeddings the tensor has
    return (
        parameters(text)
        | encoder_keys(audio, "ultravox", bins=80, output=text.integer("hidden_size"))
        | {"audio.projector.stack_factor": config.integer("stack_factor", 8)}
    )


ULTRAVOX = replace(
    LLAMA,
    checkpoints=("UltravoxModel",),
    names={
        **LLAMA.names,
        **WHISPER_NAMES,
        **{f"multi_modal_projector.{name}": f"mm.a.{ours}" for name, ours in _PROJECTOR.items()},
    },
    parameters=keys,
    splits=WHISPER_SPLITS,
    prefixes=(*TEXT_PREFIXES, *PREFIXES),
)
