"""Qwen 2.5-VL: `qwen25vl` in GGUF, under the names of Ollama's single files.

The patch convolution's two frames, and the fused projections of attention, are kept apart.
"""

from __future__ import annotations

from tampu.convert.checkpoint import Stored
from tampu.convert.config import Config
from tampu.convert.family import Family, Parameters, text_parameters
from tampu.convert.lazy_tensor import View, nth_part
from tampu.convert.llama import NAMES
from tampu.convert.vision import PREFIXES, tower_keys, tower_names

_LAYER = "visual.blocks.{}"
VISION_NAMES = {
    **tower_names(
        _LAYER,
        {
            "norm1": "ln1",
            "norm2": "ln2",
            "attn.proj": "attn_out",
            "mlp.gate_proj": "ffn_gate",
            "mlp.up_proj": "ffn_up",
            "mlp.down_proj": "ffn_down",
        },
    ),
    "visual.merger.ln_q": "v.merger.ln_q",
    "visual.merger.mlp.{}": "v.merger.mlp.{}",  # 0 and 2
}


def _frame(index: int) -> View:
    def cut(values: Stored) -> Stored:
        return values[:, :, index]

    return cut


SPLITS = {
    "visual.patch_embed.proj.weight": {
        f"v.patch_embd_{index}.weight": _frame(index) for index in range(2)
    },
    **{
        f"{_LAYER}.attn.qkv.{leaf}": {
            f"v.blk.{{}}.attn_{part}.{leaf}": nth_part(index, axis=0, count=3)
            for index, part in enumerate("qkv")
        }
        for leaf in ("weight", "bias")
    },
}


def keys(config: Config) -> Parameters:
    """Return the keys of `qwen25vl`."""
    text = config.section("text_config") if "text_config" in config else config
    text.require("hidden_act", ("silu",), "silu")
    text.require("use_sliding_window", (False,), default=False)
    vision = config.section("vision_config")
    vision.require("hidden_act", ("silu",), "silu")
    vision.require("temporal_patch_size", (2,), 2)
    rope = text.section("rope_parameters" if "rope_parameters" in text else "rope_scaling")
    sections = rope.values.get("mrope_section", [16, 24, 24])
    if not isinstance(sections, list) or not all(type(each) is int for each in sections):
        raise rope.error("mrope_section", f"{sections!r} is not a list of integers")
    whole = vision.values.get("fullatt_block_indexes") or [7, 15, 23, 31]
    tower = Config(
        {
            "image_size": 560,
            "num_attention_heads": vision.integer("num_heads", 16),
            "num_hidden_layers": vision.layers("depth", 32),
            **vision.values,
        },
        vision.where,
    )
    return {
        **text_parameters(_plain(text), scalings=("none",)),
        **tower_keys(tower, image=560, patch=14),
        "rope.mrope_section": sections,  # Ollama's name
        "rope.dimension_sections": [*sections, 0][:4],  # llama.cpp's
        "vision.attention.layer_norm_epsilon": 1e-6,  # the reference's, in none of its files
        "vision.spatial_merge_size": vision.integer("spatial_merge_size", 2),
        "vision.window_size": vision.integer("window_size", 112),
        "vision.fullatt_block_indexes": whole,
    }


def _plain(text: Config) -> Config:
    """Return a text model's configuration without M-RoPE's entry, which is not a scaling."""
    values = dict(text.values)
    if "rope_parameters" not in text:
        values.pop("rope_scaling", None)
    return Config(values, text.where)


QWEN25VL = Family(
    architecture="qwen25vl",
    checkpoints=("Qwen2_5_VLForConditionalGeneration",),
    names={**NAMES, **VISION_NAMES},
    splits=SPLITS,
    optional=frozenset({"v.merger.mlp.{}"}),
    parameters=keys,
    prefixes=(*PREFIXES, ("model.visual.", "visual.")),
)
