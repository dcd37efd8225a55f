"""GLM-OCR: `glm4` with positions of three numbers, and its vision encoder.

All tensors and keys have llama.cpp's names. Checkpoints rotate neighbouring features, and files of
models that see have them in the order of halves: the rows of queries and keys are reordered.
Layers of multi-token prediction follow the others.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import cast

import numpy as np

from tampu.convert.checkpoint import Stored
from tampu.convert.config import Config, rope_settings
from tampu.convert.experts import MTP_NAMES, count_appended_layers
from tampu.convert.families.glm4 import GLM4
from tampu.convert.families.llama import GATED
from tampu.convert.families.qwen import frame
from tampu.convert.family import Family, Parameters, text_parameters
from tampu.convert.keys.image import ImageSteps
from tampu.convert.vision import (
    PREFIXES,
    pixel_settings,
    require_usual_rope,
    tower_keys,
    tower_names,
)
from tampu.vision import CLIP, Filter

_MOST_PIXELS = 2 * 28 * 28 * 2048  # of two frames; published settings allow three times as many

NAMES = {
    "visual.patch_embed.proj.bias": "v.patch_embd.bias",
    **tower_names(
        "visual.blocks.{}",
        {
            "norm1": "ln1",
            "norm2": "ln2",
            "attn.qkv": "attn_qkv",
            "attn.proj": "attn_out",
            "attn.q_norm": "attn_q_norm",
            "attn.k_norm": "attn_k_norm",
            **{f"mlp.{part}_proj": f"ffn_{part}" for part in GATED},
        },
    ),
    "visual.post_layernorm": "v.post_ln",
    "visual.downsample": "mm.patch_merger",
    "visual.merger.proj": "mm.model.fc",
    "visual.merger.post_projection_norm": "mm.post_norm",
    **{f"visual.merger.{part}_proj": f"mm.{part}" for part in GATED},
}
# Published files omit default values.
_VISION_DEFAULTS = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16,
    "num_hidden_layers": 24,
}  # fmt: skip
_TEXT_DEFAULTS = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 16, "vocab_size": 59_392,
    "num_attention_heads": 16, "num_key_value_heads": 8, "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
}  # fmt: skip


def keys(config: Config) -> Parameters:
    """Return the keys of `glm4` with the vision encoder."""
    text = config.section("text_config")
    text.require("hidden_act", ("silu",), "silu")
    vision = config.section("vision_config")
    vision = vision.renamed({"num_heads": "num_attention_heads", "depth": "num_hidden_layers"})
    vision = vision.with_defaults(_VISION_DEFAULTS)
    vision.require("hidden_act", ("silu",), "silu")
    vision.require("temporal_patch_size", (2,), 2)
    require_usual_rope(vision)
    return {
        **text_parameters(text, scalings=("none",), rotated_part=1.0),
        "rope.dimension_sections": [
            *rope_settings(text).integers("mrope_section", [8, 12, 12]), 0
        ][:4],
        **tower_keys(vision, image=336, patch=14),
        "vision.attention.layer_norm_epsilon": vision.number("rms_norm_eps", 1e-5),
        "vision.spatial_merge_size": vision.integer("spatial_merge_size", 2),
        "vision.projector_type": "glm4v",
    }  # fmt: skip


def image_settings(processor: Config) -> Parameters:
    """Return the keys that preprocessor_config.json states: the sizes of pictures."""
    return pixel_settings(processor, most=_MOST_PIXELS)


def in_halves(name: str, values: Stored, parameters: Parameters) -> Stored:
    """Reorder the rows of queries and keys: rotated neighbours become halves of what is rotated."""
    if not name.startswith("blk.") or not any(part in name for part in (".attn_q.", ".attn_k.")):
        return values
    size = cast("int", parameters["attention.key_length"])
    rotated = cast("int", parameters["rope.dimension_count"])
    order = np.r_[0:rotated:2, 1:rotated:2, rotated:size]
    heads = values.reshape(-1, size, *values.shape[1:])
    return np.ascontiguousarray(heads[:, order]).reshape(values.shape)


def with_appended_layers(parameters: Parameters, names: Collection[str]) -> Parameters:
    """Count the layers of multi-token prediction that the checkpoint has after the last."""
    usual = [name.replace("model.language_model.", "model.") for name in names]
    return count_appended_layers(parameters, usual)


GLM_OCR = Family(
    architecture="glm4",
    checkpoints=("GlmOcrForConditionalGeneration",),
    names={**GLM4.names, **MTP_NAMES, **NAMES},
    splits={
        "visual.patch_embed.proj.weight": {
            "v.patch_embd.weight": frame(0),
            "v.patch_embd.weight.1": frame(1),
        }
    },
    optional=frozenset(MTP_NAMES.values()),
    parameters=keys,
    adapt=with_appended_layers,
    image_settings=image_settings,
    image_steps=ImageSteps(filter=Filter.BICUBIC, normalization=CLIP),
    defaults=_TEXT_DEFAULTS,
    prefixes=(*PREFIXES, ("model.visual.", "visual.")),
    transform=in_halves,
)
