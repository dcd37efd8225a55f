"""Qwen2.5-Omni and Qwen3-Omni, what they understand: the thinker, which sees and hears.

What speaks, the talker and the codec behind it, is left out. Qwen's own checkpoints have the
thinker one level deeper. The text is that of Qwen 2.5-VL, or of Qwen3-VL with experts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tampu.convert.audio import (
    LAYER_NAMES,
    PREFIXES,
    QWEN_NAMES,
    QWEN_SPLITS,
    WHISPER_SPLITS,
    encoder_keys,
    published_keys,
    qwen_keys,
    sinusoids,
)
from tampu.convert.checkpoint import StoredTensor
from tampu.convert.config import Config, rope_settings
from tampu.convert.families.qwen import QWEN3_MOE, QWEN25VL, vl_parameters
from tampu.convert.families.qwen3vl import QWEN3VL_MOE, added_features, mixture_parameters
from tampu.convert.family import Family, Parameters
from tampu.convert.keys.sound import SoundSteps
from tampu.convert.lazy_tensor import View
from tampu.convert.vision import tower_names

_SPEAKING = ("talker.", "token2wav.", "code2wav.")
_WHOLE_KEYS = (
    "talker_config", "token2wav_config", "code2wav_config", "enable_audio_output",
    "enable_talker", "im_start_token_id", "im_end_token_id", "tts_bos_token_id",
    "tts_eos_token_id", "tts_pad_token_id", "system_token_id", "user_token_id",
    "assistant_token_id",
)  # fmt: skip
_THINKER_KEYS = (
    "audio_start_token_id", "audio_end_token_id", "user_token_id",  # the vocabulary has them
    "position_id_per_seconds", "seconds_per_chunk",  # of videos, which are not taken
)  # fmt: skip
_LAYERS = "visual.blocks.{}"
_PATCHES = "visual.patch_embed.proj.weight"
_25_TOWER = {
    "d_model": 1280, "encoder_layers": 32, "encoder_attention_heads": 20, "encoder_ffn_dim": 5120,
}  # fmt: skip
_3_MERGER = {"ln_q": "norm", "mlp.0": "fc1", "mlp.2": "fc2"}


def _thinking(tensors: Iterable[StoredTensor]) -> Iterable[StoredTensor]:
    """Return the thinker's tensors."""
    return (tensor for tensor in tensors if not tensor.name.startswith(_SPEAKING))


def _thinker(config: Config, family: Family) -> Config:
    """Return the thinker's configuration, completed with the family's defaults."""
    thinker = config
    if "thinker_config" in config:
        for key in _WHOLE_KEYS:
            config.get(key)
        thinker = family.complete(config.section("thinker_config"))
    for key in _THINKER_KEYS:
        thinker.get(key)
    return thinker


def _sound_tower(thinker: Config) -> Config:
    return thinker.section("audio_config").with_defaults(_25_TOWER)


def keys_25(config: Config) -> Parameters:
    """Return the keys of `qwen25vl` with Qwen2.5-Omni's encoder of sounds."""
    thinker = _thinker(config, QWEN25_OMNI)
    text, vision = thinker.section("text_config"), thinker.section("vision_config")
    vision.require("embed_dim", (None, vision.integer("hidden_size")), None)
    audio = _sound_tower(thinker)
    published_keys(audio)
    audio.integer("max_source_positions", 1)  # as many embeddings are generated
    width, half = text.integer("hidden_size"), audio.integer("n_window", 100)
    audio.require("output_dim", (width,), 3584)
    if half % 2:
        raise audio.error("n_window", f"{half} is odd: positions are averaged in pairs")
    return {
        **vl_parameters(thinker),
        **encoder_keys(audio, "qwen2a", bins=128, output=width),
        "audio.n_window": half,
    }


def keys_3(config: Config) -> Parameters:
    """Return the keys of `qwen3vlmoe` with the encoder of sounds that Qwen3-ASR has, too."""
    thinker = _thinker(config, QWEN3_OMNI)
    text, vision = thinker.section("text_config"), thinker.section("vision_config")
    vision.require("apply_vit_abs_pos_embed", (True,), default=True)
    rope_settings(text).get("interleaved")  # mrope_interleaved says it, too
    audio = _sound_tower(thinker)
    published_keys(audio)
    return {**mixture_parameters(thinker), **qwen_keys(audio, output=text.integer("hidden_size"))}


def generated(config: Config) -> dict[str, npt.NDArray[np.float32]]:
    """Return the embedded positions."""
    thinker = config.section("thinker_config") if "thinker_config" in config else config
    return sinusoids(_sound_tower(thinker).integer("d_model"))


def _mergers(parameters: Parameters) -> Mapping[str, Mapping[str, View]]:
    return added_features(parameters, "visual.merger_list", _3_MERGER)


_COMMON = (("thinker.", ""), *PREFIXES)
_NEVER_READ = frozenset({"audio_tower.audio_bos_eos_token.weight"})

QWEN25_OMNI = replace(
    QWEN25VL,
    checkpoints=(
        "Qwen2_5OmniThinkerForConditionalGeneration",
        "Qwen2_5OmniForConditionalGeneration",
        "Qwen2_5OmniModel",
    ),
    names={
        **QWEN25VL.names,
        **tower_names(_LAYERS, {f"attn.{part}": f"attn_{part}" for part in "qkv"}),
        "audio_tower.conv1": "a.conv1d.1",
        "audio_tower.conv2": "a.conv1d.2",
        **LAYER_NAMES,
        "audio_tower.ln_post": "a.post_ln",
        "audio_tower.proj": "mm.a.fc",
    },
    splits={_PATCHES: QWEN25VL.splits[_PATCHES], **WHISPER_SPLITS},
    ignored=_NEVER_READ,
    parameters=keys_25,
    generated=generated,
    gather=_thinking,
    prefixes=(*_COMMON, *QWEN25VL.prefixes),
    sound_steps=SoundSteps(),
)
QWEN3_OMNI = replace(
    QWEN3VL_MOE,
    checkpoints=(
        "Qwen3OmniMoeThinkerForConditionalGeneration",
        "Qwen3OmniMoeForConditionalGeneration",
    ),
    names={
        **{name: ours for name, ours in QWEN3VL_MOE.names.items() if ".merger." not in name},
        "visual.merger.ln_q": "v.post_ln",
        "visual.merger.mlp.{}": "mm.{}",
        **QWEN_NAMES,
        "audio_tower.proj1": "mm.a.mlp.1",
        "audio_tower.proj2": "mm.a.mlp.2",
    },
    splits={**QWEN3VL_MOE.splits, **QWEN_SPLITS},
    stacks=QWEN3_MOE.stacks,
    fused=_mergers,
    gather=_thinking,
    optional=frozenset({"mm.{}"}),
    parameters=keys_3,
    generated=generated,
    prefixes=(*_COMMON, *QWEN3VL_MOE.prefixes),
    sound_steps=SoundSteps(),
)
