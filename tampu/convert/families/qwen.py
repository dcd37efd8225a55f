"""Qwen 2, 2.5 and 3: `qwen2`, `qwen3`, with experts `qwen2moe` and `qwen3moe`, 2.5-VL: `qwen25vl`.

Qwen 2 has biases on query, key and value, Qwen 3 norms on query and key instead. Both rotate the
first half of a head with the second, as GGUF's architectures do: no rows are reordered. Qwen
2.5-VL gets the names of Ollama's single files; the patch convolution's two frames, and the fused
projections of attention, are kept apart.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tampu.convert.checkpoint import Stored
from tampu.convert.config import Config, rope_settings
from tampu.convert.families.bert import classifier_keys
from tampu.convert.families.llama import GATED, NAMES, NAMES_WITHOUT_MLP, QK_NORM_NAMES
from tampu.convert.family import Family, Parameters, text_parameters, with_window
from tampu.convert.keys.experts import moe_parameters
from tampu.convert.keys.image import ImageSteps
from tampu.convert.lazy_tensor import View, nth_part
from tampu.convert.vision import (
    PREFIXES,
    pixel_settings,
    require_usual_rope,
    tower_keys,
    tower_names,
)
from tampu.errors import UnsupportedModelError
from tampu.vision import CLIP, Filter

_DEFAULTS = {"max_position_embeddings": 32_768}


def parameters(config: Config) -> Parameters:
    """Return the keys of `qwen2` and `qwen3`."""
    config.require("hidden_act", ("silu",), "silu")
    keys = text_parameters(config, scalings=("none", "linear", "yarn"))
    return with_window(keys, _window(config))


def _window(config: Config) -> int | None:
    """Return the sliding window, which all layers or none must have; None if there is none."""
    layers, kinds = config.layers(), set(config.strings("layer_types"))
    config.get("sliding_window")  # files have one that is not used
    if not config.flag("use_sliding_window", default=False) or "sliding_window" not in config:
        if kinds - {"full_attention"}:
            reason = f"layer_types has {', '.join(sorted(kinds))} without a sliding window"
            raise UnsupportedModelError(f"{config.where}: {reason}")
        return None
    if len(kinds) > 1 or kinds - {"full_attention", "sliding_attention"}:
        raise UnsupportedModelError(
            f"{config.where}: layer_types has {', '.join(sorted(kinds))}; a window in only some "
            "layers is not supported"
        )
    if kinds:
        return config.integer("sliding_window") if "sliding_attention" in kinds else None
    full = config.get("max_window_layers", layers)
    if full == 0:
        return config.integer("sliding_window")
    if type(full) is int and full >= layers:
        return None
    raise UnsupportedModelError(
        f"{config.where}: max_window_layers is {full!r}; a window in only some layers is not "
        "supported"
    )


QWEN2 = Family(
    architecture="qwen2",
    checkpoints=("Qwen2ForCausalLM",),
    names=NAMES,
    parameters=parameters,
    defaults=_DEFAULTS,
)

QWEN3 = Family(
    architecture="qwen3",
    checkpoints=("Qwen3ForCausalLM",),
    names=NAMES | QK_NORM_NAMES,
    parameters=parameters,
    defaults=_DEFAULTS,
)


def classifier_parameters(config: Config) -> Parameters:
    """Return the keys of `qwen3` with a head that classifies."""
    return parameters(config) | classifier_keys(config)


QWEN3_CLASSIFIER = replace(
    QWEN3,
    checkpoints=("Qwen3ForSequenceClassification",),
    names={**QWEN3.names, "score": "cls.output"},
    optional=frozenset({"output"}),
    parameters=classifier_parameters,
)


def moe_keys(config: Config) -> Parameters:
    """Return the keys of `qwen2moe` and `qwen3moe`, which have experts in all layers."""
    config.require("decoder_sparse_step", (1,), 1)
    config.require("mlp_only_layers", ([], None), [])
    return parameters(config) | moe_parameters(config, width="moe_intermediate_size")


def qwen2_moe_parameters(config: Config) -> Parameters:
    """Return the keys of `qwen2moe`, whose readers never renormalize the experts' weights."""
    config.require("norm_topk_prob", (False,), default=False)
    width = config.integer("shared_expert_intermediate_size")
    return moe_keys(config) | {"expert_shared_feed_forward_length": width}


def qwen3_moe_parameters(config: Config) -> Parameters:
    """Return the keys of `qwen3moe`, whose readers always renormalize the experts' weights."""
    config.require("norm_topk_prob", (True,), default=False)
    return moe_keys(config)


_MLP = "model.layers.{}.mlp."
MOE_NAMES = NAMES_WITHOUT_MLP | {_MLP + "gate": "blk.{}.ffn_gate_inp"}
_STACKS = {f"{_MLP}experts.{{}}.{part}_proj": f"blk.{{}}.ffn_{part}_exps" for part in GATED}

QWEN2_MOE = Family(
    architecture="qwen2moe",
    checkpoints=("Qwen2MoeForCausalLM",),
    names=MOE_NAMES
    | {f"{_MLP}shared_expert.{part}_proj": f"blk.{{}}.ffn_{part}_shexp" for part in GATED}
    | {_MLP + "shared_expert_gate": "blk.{}.ffn_gate_inp_shexp"},
    stacks=_STACKS,
    parameters=qwen2_moe_parameters,
    defaults=_DEFAULTS,
)
QWEN3_MOE = Family(
    architecture="qwen3moe",
    checkpoints=("Qwen3MoeForCausalLM",),
    names=MOE_NAMES | QK_NORM_NAMES,
    stacks=_STACKS,
    parameters=qwen3_moe_parameters,
    defaults=_DEFAULTS,
)

_LAYER = "visual.blocks.{}"
_VISION_NAMES = {
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


def frame(index: int) -> View:
    """Return the view of one frame of a patch convolution."""

    def cut(values: Stored) -> Stored:
        return values[:, :, index]

    return cut


_SPLITS = {
    "visual.patch_embed.proj.weight": {
        f"v.patch_embd_{index}.weight": frame(index) for index in range(2)
    },
    **{
        f"{_LAYER}.attn.qkv.{leaf}": {
            f"v.blk.{{}}.attn_{part}.{leaf}": nth_part(index, axis=0, count=3)
            for index, part in enumerate("qkv")
        }
        for leaf in ("weight", "bias")
    },
}

_MOST_PIXELS = 28 * 28 * 1280  # as without the file


def vl_parameters(config: Config) -> Parameters:
    """Return the keys of `qwen25vl`."""
    text = config.section("text_config") if "text_config" in config else config
    text.require("hidden_act", ("silu",), "silu")
    text.require("use_sliding_window", (False,), default=False)
    vision = config.section("vision_config")
    vision.require("hidden_act", ("silu",), "silu")
    vision.require("temporal_patch_size", (2,), 2)
    require_usual_rope(vision)
    sections = rope_settings(text).integers("mrope_section", [16, 24, 24])
    whole = vision.get("fullatt_block_indexes") or [7, 15, 23, 31]
    tower = vision.with_defaults(
        {
            "num_attention_heads": vision.integer("num_heads", 16),
            "num_hidden_layers": vision.layers("depth", 32),
        }
    )
    return {
        **text_parameters(text, scalings=("none", "linear", "yarn")),
        **tower_keys(tower, image=560, patch=14),
        "rope.mrope_section": sections,  # Ollama's name
        "rope.dimension_sections": [*sections, 0][:4],  # llama.cpp's
        "vision.attention.layer_norm_epsilon": 1e-6,  # the reference's, in none of its files
        "vision.spatial_merge_size": vision.integer("spatial_merge_size", 2),
        "vision.window_size": vision.integer("window_size", 112),
        "vision.fullatt_block_indexes": whole,
    }


QWEN25VL = Family(
    architecture="qwen25vl",
    checkpoints=("Qwen2_5_VLForConditionalGeneration",),
    names={**NAMES, **_VISION_NAMES},
    splits=_SPLITS,
    optional=frozenset({"v.merger.mlp.{}"}),
    parameters=vl_parameters,
    image_settings=partial(pixel_settings, most=_MOST_PIXELS),
    image_steps=ImageSteps(filter=Filter.BICUBIC, normalization=CLIP),
    defaults={**_DEFAULTS, "rope_theta": 1e6},
    prefixes=(*PREFIXES, ("model.visual.", "visual.")),
)
