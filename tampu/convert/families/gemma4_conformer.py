"""Gemma 4's conformer (E2B, E4B), under llama.cpp's names.

Two norms of the convolution have exchanged names there. The scale of each feature of the queries is
stored as what it is multiplied by, its softplus.
"""

from __future__ import annotations

import numpy as np

from tampu.convert.checkpoint import Stored, to_float32
from tampu.convert.config import Config
from tampu.convert.families.gemma4_vision import SOUND_EMBEDDER, Encoder
from tampu.convert.family import Parameters
from tampu.convert.keys.sound import SoundSteps

_LAYER = "audio_tower.layers.{}"
_SCALE = "per_dim_scale.weight"
_CLIPPED = {
    "feed_forward1.ffw_layer_1": "ffn_up",
    "feed_forward1.ffw_layer_2": "ffn_down",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.post": "attn_out",
    "lconv1d.linear_start": "conv_pw1",
    "lconv1d.linear_end": "conv_pw2",
    "feed_forward2.ffw_layer_1": "ffn_up_1",
    "feed_forward2.ffw_layer_2": "ffn_down_1",
}
_OTHERS = {
    "feed_forward1.pre_layer_norm": "ffn_norm",
    "feed_forward1.post_layer_norm": "ffn_post_norm",
    "norm_pre_attn": "attn_pre_norm",
    "self_attn.relative_k_proj": "attn_k_rel",
    "self_attn.per_dim_scale": _SCALE,
    "norm_post_attn": "attn_post_norm",
    "lconv1d.pre_layer_norm": "conv_norm",
    "lconv1d.conv_norm": "norm_conv",
    "feed_forward2.pre_layer_norm": "ffn_norm_1",
    "feed_forward2.post_layer_norm": "ffn_post_norm_1",
    "norm_out": "ln2",
}
_BOUNDS = ("input_min", "input_max", "output_min", "output_max")


def _of_layer(parts: dict[str, str]) -> dict[str, str]:
    return {f"{_LAYER}.{theirs}": f"a.blk.{{}}.{ours}" for theirs, ours in parts.items()}


def _flat(values: Stored) -> Stored:
    """Return a kernel (features, 1, taps) as (features, taps)."""
    return values.reshape(values.shape[0], -1)


CONFORMER = Encoder(
    {
        "audio_tower.subsample_conv_projection.layer0.conv": "a.conv1d.0",
        "audio_tower.subsample_conv_projection.layer0.norm": "a.conv1d.0.norm",
        "audio_tower.subsample_conv_projection.layer1.conv": "a.conv1d.1",
        "audio_tower.subsample_conv_projection.layer1.norm": "a.conv1d.1.norm",
        "audio_tower.subsample_conv_projection.input_proj_linear": "a.input_projection",
        **_of_layer({f"{name}.linear": ours for name, ours in _CLIPPED.items()} | _OTHERS),
        "audio_tower.output_proj": "a.pre_encode.out",
        **SOUND_EMBEDDER,
    },
    {
        f"{_LAYER}.lconv1d.depthwise_conv1d.weight": {"a.blk.{}.conv_dw.weight": _flat},
    },
    _of_layer(
        {f"{name}.{end}": f"{ours}.{end}" for name, ours in _CLIPPED.items() for end in _BOUNDS}
    ),
    modality="audio",
)
SOUND_STEPS = SoundSteps(
    transformed=512,
    others={
        "fft_length": (512,),
        "frame_length": (320,),
        "input_scale_factor": (1.0,),
        "max_frequency": (8000.0,),
        "min_frequency": (0.0,),
        "mel_floor": (1e-3,),
        "preemphasis": (0.0,),
        "preemphasis_htk_flavor": (True, False),
        "fft_overdrive": (False,),
        "per_bin_mean": (None,),
        "per_bin_stddev": (None,),
    },
)


def conformer_parameters(config: Config) -> Parameters:
    """Return the keys of the conformer; what the code has as a constant must have its value."""
    audio, text = config.section("audio_config"), config.section("text_config")
    for key, only in (
        ("hidden_act", "silu"), ("conv_kernel_size", 5), ("residual_weight", 0.5),
        ("attention_chunk_size", 12), ("attention_context_left", 13),
        ("attention_context_right", 0), ("attention_logit_cap", 50.0), ("rms_norm_eps", 1e-6),
        ("attention_invalid_logits_value", -1e9), ("gradient_clipping", 1e10),
    ):  # fmt: skip
        audio.require(key, (only,), only)
    audio.get("subsampling_conv_channels")  # the tensors have it
    width = audio.integer("hidden_size", 1024)
    return {
        "audio.num_mel_bins": 128,
        "audio.block_count": audio.layers(default=12),
        "audio.embedding_length": width,
        "audio.feed_forward_length": 4 * width,
        "audio.attention.head_count": audio.integer("num_attention_heads", 8),
        "audio.attention.layer_norm_epsilon": 1e-6,
        "audio.projection_dim": text.integer("hidden_size"),
        "audio.projector_type": "gemma4a",
    }


def with_softplus(name: str, values: Stored, parameters: Parameters) -> Stored:  # noqa: ARG001
    """Return the scales of queries as what they multiply by, others as they are."""
    if not name.endswith(_SCALE):
        return values
    return np.logaddexp(to_float32(values), 0).astype(np.float32)
