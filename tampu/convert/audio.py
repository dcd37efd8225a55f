"""Parts shared by the converters of models that hear: Whisper's encoder, and Qwen's."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import numpy.typing as npt

from tampu.convert.checkpoint import Stored
from tampu.convert.config import Config
from tampu.convert.family import Parameters
from tampu.convert.lazy_tensor import View


def _with_axes(count: int, values: Stored) -> Stored:
    """Return a bias as llama.cpp adds it to a map: with so many dimensions of one behind it."""
    return values.reshape(-1, *[1] * count)


PREFIXES = (
    ("model.audio_tower.", "audio_tower."),
    ("model.multi_modal_projector.", "multi_modal_projector."),
)

_LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_out",
    "self_attn_layer_norm": "ln1",
    "fc1": "ffn_up",
    "fc2": "ffn_down",
    "final_layer_norm": "ln2",
}

LAYER_NAMES = {
    f"audio_tower.layers.{{}}.{theirs}": f"a.blk.{{}}.{ours}" for theirs, ours in _LAYER.items()
}

WHISPER_NAMES = {
    "audio_tower.conv1": "a.conv1d.1",
    "audio_tower.conv2": "a.conv1d.2",
    "audio_tower.embed_positions": "a.position_embd",
    **LAYER_NAMES,
    "audio_tower.layer_norm": "a.post_ln",
}

QWEN_NAMES = {
    **{f"audio_tower.conv2d{index}": f"a.conv2d.{index}" for index in (1, 2, 3)},
    "audio_tower.conv_out": "a.conv_out",
    **LAYER_NAMES,
    "audio_tower.ln_post": "a.post_ln",
}
WHISPER_SPLITS: Mapping[str, Mapping[str, View]] = {
    f"audio_tower.conv{index}.bias": {f"a.conv1d.{index}.bias": partial(_with_axes, 1)}
    for index in (1, 2)
}
QWEN_SPLITS: Mapping[str, Mapping[str, View]] = {
    f"audio_tower.conv2d{index}.bias": {f"a.conv2d.{index}.bias": partial(_with_axes, 2)}
    for index in (1, 2, 3)
}
_SINUSOIDS = 1500  # as many as llama.cpp's files have


def sinusoids(features: int) -> dict[str, npt.NDArray[np.float32]]:
    """Return embedded positions (arXiv:1706.03762), which checkpoints of Qwen's leave out."""
    half = features // 2
    frequencies = np.exp(-np.log(10_000) / max(1, half - 1) * np.arange(half)).astype(np.float32)
    angles = np.arange(_SINUSOIDS, dtype=np.float32)[:, None] * frequencies
    table = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    return {"a.position_embd.weight": table.astype(np.float32)}


def encoder_keys(audio: Config, kind: str, *, bins: int, output: int) -> Parameters:
    """Return the keys common to all audio encoders with layers.

    Args:
        audio: the encoder's configuration, under the names of either Whisper or Voxtral.
        kind: of projector, as llama.cpp names it.
        bins: the default number of bands of frequencies.
        output: features of the text model.
    """
    audio.require("activation_function", ("gelu",), "gelu")
    audio.require("scale_embedding", (False,), default=False)
    width = _either(audio, "d_model", "hidden_size")
    heads = _either(audio, "encoder_attention_heads", "num_attention_heads")
    if width % heads:
        raise audio.error("d_model", f"{width} is not a multiple of {heads} heads")
    return {
        "audio.num_mel_bins": audio.integer("num_mel_bins", bins),
        "audio.block_count": _either(audio, "encoder_layers", "num_hidden_layers"),
        "audio.embedding_length": width,
        "audio.feed_forward_length": _either(audio, "encoder_ffn_dim", "intermediate_size"),
        "audio.attention.head_count": heads,
        "audio.attention.layer_norm_epsilon": 1e-5,  # PyTorch's, in no file
        "audio.projection_dim": output,
        "audio.projector_type": kind,
    }


def qwen_keys(audio: Config, *, output: int) -> Parameters:
    """Return the keys of the encoder of Qwen3-ASR and Qwen3-Omni, `qwen3a`.

    Args:
        audio: its configuration, with the widths.
        output: features of the text model.
    """
    audio.require("output_dim", (output,), 3584)
    for key in ("downsample_hidden_size", "max_position_embeddings", "max_source_positions"):
        audio.integer(key, 1)  # the tensors have it
    window = audio.integer("n_window", 50)
    infer = audio.integer("n_window_infer", 800)
    if infer % (2 * window):
        raise audio.error("n_window_infer", f"{infer} is not a multiple of {2 * window}")
    return {
        **encoder_keys(audio, "qwen3a", bins=128, output=output),
        "audio.n_window": window,
        "audio.n_window_infer": infer,
    }


def published_keys(audio: Config) -> None:
    """Check what only Qwen's own checkpoints have in an encoder's configuration."""
    audio.get("conv_chunksize")  # how much is convolved at once
    audio.require("num_hidden_layers", (None, audio.integer("encoder_layers")), None)


def _either(audio: Config, name: str, other: str) -> int:
    return audio.integer(name if name in audio else other)
