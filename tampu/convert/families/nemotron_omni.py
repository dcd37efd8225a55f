"""Nemotron 3 Nano Omni: a Nemotron-H with the vision encoder C-RADIO.

The vision encoder's tensors and keys have llama.cpp's names; the encoder of sounds is left out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import cast

from tampu.convert.checkpoint import Stored, StoredTensor
from tampu.convert.config import Config
from tampu.convert.families.nemotron_h import NEMOTRON_H
from tampu.convert.family import Family, Parameters
from tampu.convert.keys.image import ImageSteps
from tampu.convert.lazy_tensor import View, nth_part
from tampu.convert.vision import color_settings, tower_keys, tower_names
from tampu.vision import CLIP, Filter

log = logging.getLogger("tampu")

_LEGACY = {  # names of keys in the first published files
    "llm_config": "text_config",
    "sound_config": "audio_config",
    "vit_hidden_size": "vision_hidden_size",
    "img_context_token_id": "image_token_id",
    "video_context_token_id": "video_token_id",
    "sound_context_token_id": "audio_token_id",
}
_SOUND = ("sound_encoder.", "sound_projection.", "audio_tower.", "embed_audio.")
_TOWER = "vision_model.radio_model.model."
_LAYER = {
    "norm1": "ln1",
    "norm2": "ln2",
    "attn.proj": "attn_out",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
    "layer_scale1.lambda1": "ls1.weight",
    "layer_scale2.lambda1": "ls2.weight",
}
NAMES = {
    f"{_TOWER}patch_generator.cls_token.token": "v.class_embd",
    **tower_names(f"{_TOWER}blocks.{{}}", _LAYER),
    "projector.norm": "mm.model.mlp.0",
    "projector.first": "mm.model.mlp.1",
    "projector.second": "mm.model.mlp.3",
}
_DEFAULTS = {  # of RadioConfig
    "hidden_size": 1280, "num_hidden_layers": 32, "num_attention_heads": 16, "patch_size": 16,
    "num_channels": 3, "max_img_size": 2048,
}  # fmt: skip


def _views() -> dict[str, Mapping[str, View]]:
    """Return the parts of fused queries, keys and values, and the tensors with other shapes."""
    fused: dict[str, Mapping[str, View]] = {
        f"{_TOWER}blocks.{{}}.attn.qkv.{leaf}": {
            f"v.blk.{{}}.attn_{part}.{leaf}": nth_part(index, axis=0, count=3)
            for index, part in enumerate("qkv")
        }
        for leaf in ("weight", "bias")
    }
    fused[f"{_TOWER}patch_generator.pos_embed"] = {"v.position_embd.weight": _first}
    return fused


def _first(values: Stored) -> Stored:
    """Return the positions without the axis of images."""
    return values.reshape(values.shape[1:])


def _kernel(side: int, values: Stored) -> Stored:
    """Return the projection of patches, whose colors are slowest, as a convolution."""
    return values.reshape(len(values), -1, side, side)


def parameters(config: Config) -> Parameters:
    """Return the keys of the text model and of its vision encoder."""
    config = config.renamed(_LEGACY)
    for key in ("vision_hidden_size", "projector_hidden_size", "force_image_size", "audio_config"):
        config.get(key)  # the tensors have the first two; the others are not used or left out
    for key in ("video_pruning_rate", "video_temporal_patch_size"):
        config.get(key)  # no videos are taken
    text = config.section("text_config")
    text.require("num_nextn_predict_layers", (0, None), 0)  # else the encoder ends with a norm
    vision = config.section("vision_config").with_defaults(_DEFAULTS)
    vision.require("hidden_act", ("gelu",), "gelu")
    vision.require("use_swiglu_ffn", (False,), default=False)
    vision.require("qkv_bias", (True,), default=True)
    for key in ("summary_idxs", "num_cls_tokens", "num_registers", "layerscale_value", "image_size",
                "norm_mean", "norm_std", "patch_dim", "video_patch_dim",
                "video_temporal_patch_size", "drop_path_rate"):  # fmt: skip
        vision.get(key)  # the tensors or the image processor have it, or nothing reads it
    width, side = vision.integer("hidden_size"), vision.integer("max_img_size")
    inner = int(width * vision.number("mlp_ratio", 4.0))
    as_usual = {**vision.values, "image_size": side, "intermediate_size": inner}
    ratio = config.number("downsample_ratio", 0.5)
    return {
        **NEMOTRON_H.parameters(text),
        **tower_keys(vision.changed(as_usual), image=side, patch=16),
        "vision.attention.layer_norm_epsilon": vision.number("layer_norm_eps", 1e-6),
        "vision.projector.scale_factor": max(1, round(1 / ratio)),
        "vision.projector_type": "nemotron_v2_vl",
    }


def image_settings(processor: Config) -> Parameters:
    """Return the keys that preprocessor_config.json states: numbers of patches, normalization."""
    processor = processor.renamed({"norm_mean": "image_mean", "norm_std": "image_std"})
    for key in ("max_model_len", "_downsample_factor", "downsample_ratio"):
        processor.get(key)  # the most patches are fewer, and config.json has the factor
    return color_settings(processor) | {
        f"vision.{key}": processor.integer(key)
        for key in ("min_num_patches", "max_num_patches")
        if key in processor
    }


def gather(tensors: Iterable[StoredTensor]) -> Iterable[StoredTensor]:
    """Leave out the encoder of sounds and the projection of videos."""
    left_out = 0
    for tensor in NEMOTRON_H.gather(tensors):
        if tensor.name.startswith(_SOUND):
            left_out += 1
        elif "video_embedder" not in tensor.name:
            yield tensor
    if left_out:
        log.warning("%d tensors of an encoder of sounds are left out", left_out)


def fused(parameters: Parameters) -> Mapping[str, Mapping[str, View]]:
    """Return the views of the text model, and of the encoder's projection of patches."""
    side = cast("int", parameters["vision.patch_size"])
    kernel: Mapping[str, View] = {"v.patch_embd.weight": partial(_kernel, side)}
    return {**NEMOTRON_H.fused(parameters), f"{_TOWER}patch_generator.embedder.weight": kernel}


NEMOTRON_OMNI: Family = replace(
    NEMOTRON_H,
    checkpoints=("NemotronH_Omni_Reasoning_V3",),
    names={**NEMOTRON_H.names, **NAMES},
    prefixes=(
        ("language_model.", ""),
        *NEMOTRON_H.prefixes,
        ("mlp1.0.", "projector.norm."),
        ("mlp1.1.", "projector.first."),
        ("mlp1.3.", "projector.second."),
    ),
    splits={**NEMOTRON_H.splits, **_views()},
    optional=NEMOTRON_H.optional | {"v.class_embd", "v.blk.{}.ls1.weight", "v.blk.{}.ls2.weight"},
    ignored=frozenset(
        f"vision_model.radio_model.{name}"
        for name in ("summary_idxs", "input_conditioner.norm_mean", "input_conditioner.norm_std")
    ),
    parameters=parameters,
    image_settings=image_settings,
    image_steps=ImageSteps(filter=Filter.BICUBIC, normalization=CLIP),
    gather=gather,
    fused=fused,
)
