"""LFM2-VL: an LFM2 with a SigLIP 2 encoder of images of any shape.

The vision encoder's tensors and keys have llama.cpp's names.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

import numpy as np

from tampu.convert.checkpoint import Stored
from tampu.convert.config import Config
from tampu.convert.families.lfm2 import LFM2
from tampu.convert.family import Family, Parameters
from tampu.convert.keys.image import ImageSteps
from tampu.convert.vision import PREFIXES, SIGLIP_LAYER, tower_keys, tower_names
from tampu.vision import HALF, Filter

NAMES = {
    "vision_tower.embeddings.patch_embedding": "v.patch_embd",
    "vision_tower.embeddings.position_embedding": "v.position_embd",
    "vision_tower.post_layernorm": "v.post_ln",
    **tower_names("vision_tower.encoder.layers.{}", SIGLIP_LAYER),
    "multi_modal_projector.layer_norm": "mm.input_norm",
    "multi_modal_projector.linear_1": "mm.1",
    "multi_modal_projector.linear_2": "mm.2",
}
# Published files omit default values.
_VISION_DEFAULTS = {
    "num_hidden_layers": 12, "hidden_size": 768, "intermediate_size": 3072,
    "num_attention_heads": 12, "patch_size": 16, "num_patches": 256,
}  # fmt: skip
_OF_PROCESSOR = (
    "do_image_splitting", "encoder_patch_size", "max_image_tokens", "max_num_patches",
    "max_pixels_tolerance", "max_tiles", "min_image_tokens", "min_tiles", "tile_size",
    "use_image_special_tokens", "use_thumbnail",
)  # fmt: skip


def parameters(config: Config) -> Parameters:
    """Return the keys of `lfm2` with the encoder."""
    config.require("vision_feature_layer", (-1,), -1)
    config.require("projector_hidden_act", ("gelu",), "gelu")
    for key in (*_OF_PROCESSOR, "projector_hidden_size", "projector_bias"):
        config.get(key)  # the image processor's settings and the tensors have it
    config.get("projector_use_layernorm")
    vision = config.section("vision_config").with_defaults(_VISION_DEFAULTS)
    vision.require("hidden_act", ("gelu_pytorch_tanh",), "gelu_pytorch_tanh")
    vision.require("vision_use_head", (False,), default=True)
    positions = vision.integer("num_patches")
    side = math.isqrt(positions)
    if side**2 != positions:
        raise vision.error("num_patches", f"{positions} is not a square")
    pixels = side * vision.integer("patch_size")
    return {
        **LFM2.parameters(config.section("text_config")),
        **tower_keys(vision.changed({**vision.values, "image_size": pixels}), image=0, patch=16),
        "vision.attention.layer_norm_epsilon": vision.number("layer_norm_eps", 1e-6),
        "vision.projector.scale_factor": config.integer("downsample_factor", 2),
        "vision.projector_type": "lfm2",
    }


def image_settings(processor: Config) -> Parameters:
    """Return the keys that preprocessor_config.json states: sizes of pictures and their tiles."""
    square = processor.integer("encoder_patch_size", 16) * processor.integer("downsample_factor", 2)
    for key in ("size", "max_num_patches"):
        processor.get(key)  # transformers does not read them
    keys: Parameters = {
        f"vision.image_{ours}_pixels": processor.integer(f"{ours}_image_tokens", tokens) * square**2
        for ours, tokens in (("min", 64), ("max", 256))
    }
    keys["vision.preproc_image_size"] = processor.integer("tile_size", 512, maximum=4096)
    splits = processor.flag("do_image_splitting", default=True)
    for ours, usual in (("min", 2), ("max", 10)):
        tiles = processor.integer(f"{ours}_tiles", usual, maximum=10)
        keys[f"vision.preproc_{ours}_tiles"] = tiles if splits else 1
    return keys


def transform(name: str, values: Stored, parameters: Parameters) -> Stored:
    """Return the projection of patches, whose colors are fastest, as a convolution."""
    if name != "v.patch_embd.weight":
        return LFM2.transform(name, values, parameters)
    side = cast("int", parameters["vision.patch_size"])
    kernel = values.reshape(len(values), side, side, -1)
    return np.ascontiguousarray(kernel.transpose(0, 3, 1, 2))


LFM2_VL: Family = replace(
    LFM2,
    checkpoints=("Lfm2VlForConditionalGeneration",),
    names={**LFM2.names, **NAMES},
    prefixes=PREFIXES,
    optional=LFM2.optional | {"mm.input_norm"},
    parameters=parameters,
    transform=transform,
    image_settings=image_settings,
    image_steps=ImageSteps(
        filter=Filter.BILINEAR,
        normalization=HALF,
        others={"max_pixels_tolerance": (2.0,), "use_thumbnail": (True,)},
    ),
)
