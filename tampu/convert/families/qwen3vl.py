"""Qwen3-VL: `qwen3vl`, with experts `qwen3vlmoe`; its vision encoder, which Qwen 3.5 has too.

All tensors and keys have llama.cpp's names, text and vision in one file. The fused projections of
the encoder's attention stay fused; the patch convolution's two frames are kept apart. What is added
to the text's first layers is numbered by the layer of the encoder that it comes from.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import cast

import numpy as np

from tampu.convert.checkpoint import StoredTensor
from tampu.convert.config import Config, rope_settings
from tampu.convert.families.llama import NAMES, QK_NORM_NAMES
from tampu.convert.families.qwen import MOE_NAMES, frame
from tampu.convert.family import Family, Parameters, text_parameters
from tampu.convert.keys.experts import moe_parameters
from tampu.convert.keys.image import ImageSteps
from tampu.convert.lazy_tensor import View, nth_part, transposed, viewed
from tampu.convert.vision import (
    PREFIXES,
    color_settings,
    pixel_settings,
    require_usual_rope,
    tower_keys,
    tower_names,
)
from tampu.errors import ModelFileError
from tampu.vision import HALF, Filter

_MOST_PIXELS = 32 * 32 * 1280  # published settings allow 16 million, which take hours on a CPU
IMAGE_STEPS = ImageSteps(filter=Filter.BICUBIC, normalization=HALF)
_STACK = "vision.deepstack_visual_indexes"
_MERGER: Mapping[str, str] = {"norm": "norm", "linear_fc1": "fc1", "linear_fc2": "fc2"}
_EXPERTS = "model.layers.{}.mlp.experts"

TOWER_PREFIXES = (*PREFIXES, ("model.visual.", "visual."))
TOWER_NAMES: Mapping[str, str] = {
    **tower_names(
        "visual.blocks.{}",
        {
            "norm1": "ln1",
            "norm2": "ln2",
            "attn.qkv": "attn_qkv",
            "attn.proj": "attn_out",
            "mlp.linear_fc1": "ffn_up",
            "mlp.linear_fc2": "ffn_down",
        },
    ),
    "visual.patch_embed.proj.bias": "v.patch_embd.bias",
    "visual.pos_embed": "v.position_embd",
    "visual.merger.norm": "v.post_ln",
    "visual.merger.linear_fc1": "mm.0",
    "visual.merger.linear_fc2": "mm.2",
}
TOWER_SPLITS: Mapping[str, Mapping[str, View]] = {
    "visual.patch_embed.proj.weight": {
        "v.patch_embd.weight": frame(0),
        "v.patch_embd.weight.1": frame(1),
    }
}


def tower_parameters(vision: Config) -> Parameters:
    """Return the keys of the vision encoder."""
    vision.require("hidden_act", ("gelu_pytorch_tanh",), "gelu_pytorch_tanh")
    vision.require("temporal_patch_size", (2,), 2)
    require_usual_rope(vision)
    patch, places = (
        vision.integer("patch_size", 16),
        vision.integer("num_position_embeddings", 2304),
    )
    side = math.isqrt(places)
    if side**2 != places:
        raise vision.error("num_position_embeddings", f"{places} is not a square")
    layers = vision.layers("depth", 27)
    stack = vision.integers("deepstack_visual_indexes", [])
    if len(set(stack)) != len(stack) or not all(0 <= index < layers for index in stack):
        raise vision.error("deepstack_visual_indexes", f"{stack} are not some of {layers} layers")
    tower = vision.with_defaults(
        {"num_attention_heads": vision.integer("num_heads", 16), "num_hidden_layers": layers}
    )
    return {
        **tower_keys(tower, image=side * patch, patch=16),
        "vision.attention.layer_norm_epsilon": 1e-6,  # the reference's, in none of its files
        "vision.spatial_merge_size": vision.integer("spatial_merge_size", 2),
        "vision.projector_type": "qwen3vl_merger",
        "vision.is_deepstack_layers": [index in stack for index in range(layers)],
        "n_deepstack_layers": len(stack),
        **({_STACK: stack} if stack else {}),
    }


def image_settings(processor: Config) -> Parameters:
    """Return the keys that preprocessor_config.json states: image sizes and normalization."""
    return pixel_settings(processor, most=_MOST_PIXELS) | color_settings(processor)


def added_features(
    parameters: Parameters,
    mergers: str = "visual.deepstack_merger_list",
    parts: Mapping[str, str] = _MERGER,
) -> Mapping[str, Mapping[str, View]]:
    """Return the tensors of what is added to the text's layers, by the encoder's layers.

    Args:
        parameters: the keys.
        mergers: the checkpoint's name of the list of them.
        parts: the checkpoint's names of their parts, and GGUF's.
    """
    stack = cast("list[int]", parameters.get(_STACK, []))
    return {
        f"{mergers}.{index}.{part}.{leaf}": {f"v.deepstack.{layer}.{ours}.{leaf}": np.asarray}
        for index, layer in enumerate(stack)
        for part, ours in parts.items()
        for leaf in ("weight", "bias")
    }


def gather(tensors: Iterable[StoredTensor]) -> Iterable[StoredTensor]:
    """Return the tensors, the experts' with outputs before inputs; published ones have the reverse.

    The shapes of both projections of a layer tell the order: one alone may be square.
    """
    held = {tensor.name: tensor for tensor in tensors}
    for name, tensor in held.items():
        stem, _, part = name.rpartition(".")
        gate_up, down = held.get(f"{stem}.gate_up_proj"), held.get(f"{stem}.down_proj")
        pair = [each for each in (gate_up, down) if each and len(each.shape) == 3]
        if len(pair) < 2 or part not in ("gate_up_proj", "down_proj"):
            yield tensor
            continue
        first, second = pair[0].shape[1:], pair[1].shape[1:]
        if first == (second[1], 2 * second[0]):
            yield viewed(tensor, transposed())
        elif first == (2 * second[1], second[0]):
            yield tensor
        else:
            reason = f"the shapes {list(first)} and {list(second)} do not match"
            raise ModelFileError(stem, reason)


def experts(parameters: Parameters) -> Mapping[str, Mapping[str, View]]:
    """Return the parts of the experts, and what is added to the text's layers."""
    return {
        **added_features(parameters),
        f"{_EXPERTS}.gate_up_proj": {
            "blk.{}.ffn_gate_exps.weight": nth_part(0, axis=1),
            "blk.{}.ffn_up_exps.weight": nth_part(1, axis=1),
        },
        f"{_EXPERTS}.down_proj": {"blk.{}.ffn_down_exps.weight": np.asarray},
    }


def parameters(config: Config) -> Parameters:
    """Return the keys of `qwen3vl`."""
    text = config.section("text_config")
    text.require("hidden_act", ("silu",), "silu")
    text.require("attention_bias", (False,), default=False)
    rope = rope_settings(text)
    rope.require("mrope_interleaved", (True,), default=True)
    return {
        **text_parameters(text, scalings=("none", "linear", "yarn")),
        "rope.dimension_sections": [*rope.integers("mrope_section", [24, 20, 20]), 0][:4],
        **tower_parameters(config.section("vision_config")),
    }


def mixture_parameters(config: Config) -> Parameters:
    """Return the keys of `qwen3vlmoe`, which has experts in all layers."""
    text = config.section("text_config")
    text.require("decoder_sparse_step", (1,), 1)
    text.require("mlp_only_layers", ([], None), [])
    text.require("norm_topk_prob", (True,), default=True)
    return parameters(config) | moe_parameters(text, width="moe_intermediate_size")


QWEN3VL = Family(
    architecture="qwen3vl",
    checkpoints=("Qwen3VLForConditionalGeneration",),
    names={**NAMES, **QK_NORM_NAMES, **TOWER_NAMES},
    splits=TOWER_SPLITS,
    fused=added_features,
    parameters=parameters,
    image_settings=image_settings,
    image_steps=IMAGE_STEPS,
    defaults={"rope_theta": 500_000.0, "max_position_embeddings": 128_000},
    prefixes=TOWER_PREFIXES,
)
QWEN3VL_MOE = Family(
    architecture="qwen3vlmoe",
    checkpoints=("Qwen3VLMoeForConditionalGeneration",),
    names={**MOE_NAMES, **QK_NORM_NAMES, **TOWER_NAMES},
    splits=TOWER_SPLITS,
    fused=experts,
    gather=gather,
    parameters=mixture_parameters,
    image_settings=image_settings,
    image_steps=IMAGE_STEPS,
    defaults={"rope_theta": 500_000.0, "max_position_embeddings": 128_000},
    prefixes=TOWER_PREFIXES,
)
