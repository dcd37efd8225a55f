"""InternVL 3 and 3.5 in transformers' form: a Qwen or a Llama with InternViT and a projector.

The text model's architecture is that of its own checkpoints. The vision encoder's tensors and keys
have llama.cpp's names.
"""

from __future__ import annotations

from dataclasses import replace

from tampu.convert.config import Config
from tampu.convert.families.llama import LLAMA
from tampu.convert.families.qwen import QWEN2, QWEN3, QWEN3_MOE
from tampu.convert.family import Family, Parameters
from tampu.convert.keys.image import ImageSteps
from tampu.convert.vision import ATTENTION, PREFIXES, color_settings, tower_keys, tower_names
from tampu.errors import UnsupportedModelError
from tampu.vision import IMAGENET, Filter

_LAYER = {
    **{f"attention.{part.removeprefix('self_attn.')}": ours for part, ours in ATTENTION.items()},
    "attention.projection_layer": "attn_out",
    "attention.q_norm": "attn_q_norm",
    "attention.k_norm": "attn_k_norm",
    "layernorm_before": "ln1",
    "layernorm_after": "ln2",
    "lambda_1": "ls1.weight",
    "lambda_2": "ls2.weight",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
}
NAMES = {
    "vision_tower.embeddings.cls_token": "v.class_embd",
    "vision_tower.embeddings.position_embeddings": "v.position_embd.weight",
    "vision_tower.embeddings.patch_embeddings.projection": "v.patch_embd",
    **tower_names("vision_tower.encoder.layer.{}", _LAYER),
    "multi_modal_projector.layer_norm": "mm.model.mlp.0",
    "multi_modal_projector.linear_1": "mm.model.mlp.1",
    "multi_modal_projector.linear_2": "mm.model.mlp.3",
}
_OPTIONAL = frozenset({"v.class_embd", "v.blk.{}.attn_q_norm", "v.blk.{}.attn_k_norm"})
# Published files omit default values.
_VISION_DEFAULTS = {
    "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
    "intermediate_size": 4096,
}  # fmt: skip


def _side(vision: Config, key: str, usual: int) -> int:
    """Return a length in pixels that may be given for both sides."""
    value = vision.get(key, usual)
    first = value[0] if isinstance(value, list) and value else value
    if isinstance(value, list) and set(value) != {first}:
        raise vision.error(key, f"{value} is not a square")
    return vision.changed({key: first}).integer(key)


def tower_parameters(config: Config) -> Parameters:
    """Return the keys of the vision encoder."""
    config.require("vision_feature_layer", (-1,), -1)
    config.require("vision_feature_select_strategy", ("default",), "default")
    config.require("projector_hidden_act", ("gelu",), "gelu")
    vision = config.section("vision_config").with_defaults(_VISION_DEFAULTS)
    vision.require("hidden_act", ("gelu",), "gelu")
    vision.require("norm_type", ("layer_norm", "rms_norm"), "layer_norm")
    vision.require("use_mask_token", (False,), default=False)
    vision.require("use_absolute_position_embeddings", (True,), default=True)
    vision.require("use_mean_pooling", (True,), default=True)  # else there is another norm
    for shown in ("use_qk_norm", "layer_scale_init_value"):
        vision.get(shown)  # the tensors have it
    image, patch = _side(vision, "image_size", 448), _side(vision, "patch_size", 14)
    ratio = config.number("downsample_ratio", 0.5)
    merge = int(1 / ratio)
    if merge < 1 or image % (patch * merge):
        reason = f"{image} pixels are not squares of {merge} patches of {patch}"
        raise config.error("downsample_ratio", reason)
    square = vision.changed({**vision.values, "image_size": image, "patch_size": patch})
    return {
        **tower_keys(square, image=448, patch=14),
        "vision.attention.layer_norm_epsilon": vision.number("layer_norm_eps", 1e-6),
        "vision.projector.scale_factor": merge,
        "vision.projector_type": "internvl",
    }


def image_settings(processor: Config) -> Parameters:
    """Return the keys that preprocessor_config.json states: numbers of tiles, normalization."""
    keys = color_settings(processor)
    for ours, theirs in (("min", "min_patches"), ("max", "max_patches")):
        if theirs in processor:
            keys[f"vision.preproc_{ours}_tiles"] = processor.integer(theirs, maximum=1024)
    return keys


def _seeing(text: Family) -> Family:
    """Return the family of a text model with the vision encoder."""

    def parameters(config: Config) -> Parameters:
        return text.parameters(config.section("text_config")) | tower_parameters(config)

    return replace(
        text,
        checkpoints=(),
        names={**text.names, **NAMES},
        parameters=parameters,
        prefixes=PREFIXES,
        optional=text.optional | _OPTIONAL,
        image_settings=image_settings,
        image_steps=ImageSteps(
            filter=Filter.BICUBIC,
            normalization=IMAGENET,
            is_square=True,
            others={"crop_to_patches": (True, False)},  # transformers always sets it
        ),
        tied=True,
    )


_TEXTS = {"qwen2": QWEN2, "qwen3": QWEN3, "qwen3_moe": QWEN3_MOE, "llama": LLAMA}


def _of_text(config: Config) -> Family:
    """Return the family for the kind of text model."""
    text = config.section("text_config")
    kind = text.string("model_type", "qwen2")
    if kind not in _TEXTS:
        known = ", ".join(_TEXTS)
        raise UnsupportedModelError(f"{text.where}: model_type is {kind!r}; known: {known}")
    return _seeing(_TEXTS[kind])


INTERNVL = replace(
    _seeing(QWEN2), checkpoints=("InternVLForConditionalGeneration",), variant=_of_text
)
