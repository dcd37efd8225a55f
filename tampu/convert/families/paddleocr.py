"""PaddleOCR-VL: `paddleocr`, a Qwen 2.5-VL's text without biases, and its vision encoder.

All tensors and keys have llama.cpp's names.
"""

from __future__ import annotations

from tampu.convert.config import Config, rope_settings
from tampu.convert.families.llama import NAMES
from tampu.convert.family import Family, Parameters, text_parameters
from tampu.convert.keys.image import ImageSteps
from tampu.convert.vision import (
    PREFIXES,
    SIGLIP_LAYER,
    color_settings,
    pixel_settings,
    require_usual_rope,
    tower_keys,
    tower_names,
)
from tampu.vision import HALF, Filter

_MOST_PIXELS = 28 * 28 * 2048  # published settings allow more, which take minutes on a CPU
_TOWER = "visual.vision_model."
TOWER_NAMES = {
    f"{_TOWER}embeddings.patch_embedding": "v.patch_embd",
    f"{_TOWER}embeddings.position_embedding": "v.position_embd",
    f"{_TOWER}post_layernorm": "v.post_ln",
    **tower_names(f"{_TOWER}encoder.layers.{{}}", SIGLIP_LAYER),
    "mlp_AR.pre_norm": "mm.input_norm",
    "mlp_AR.linear_1": "mm.1",
    "mlp_AR.linear_2": "mm.2",
}
# SigLIP's head, and positions of pictures in a row: neither the reference nor llama.cpp has them.
_IGNORED = frozenset(
    f"{_TOWER}{name}"
    for name in (
        "embeddings.packing_position_embedding.weight",
        "head.probe",
        "head.attention.in_proj_weight",
        "head.attention.in_proj_bias",
        *(
            f"head.{part}.{leaf}"
            for part in ("attention.out_proj", "layernorm", "mlp.fc1", "mlp.fc2")
            for leaf in ("weight", "bias")
        ),
    )
)
_VISION_DEFAULTS = {
    "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
    "num_attention_heads": 16,
}  # fmt: skip


def keys(config: Config) -> Parameters:
    """Return the keys of `paddleocr` with the vision encoder."""
    text = config.section("text_config") if "text_config" in config else config
    text.require("hidden_act", ("silu",), "silu")
    text.require("use_bias", (False,), default=False)
    sections = rope_settings(text).integers("mrope_section", [16, 24, 24])
    vision = config.section("vision_config").with_defaults(_VISION_DEFAULTS)
    vision.require("hidden_act", ("gelu_pytorch_tanh",), "gelu_pytorch_tanh")
    require_usual_rope(vision)
    return {
        **text_parameters(text, scalings=("none",)),
        "rope.dimension_sections": [*sections, 0][:4],
        **tower_keys(vision, image=384, patch=14, has_rest=True),
        "vision.attention.layer_norm_epsilon": vision.number("layer_norm_eps", 1e-6),
        "vision.spatial_merge_size": vision.integer("spatial_merge_size", 2),
        "vision.min_pixels": 384 * 384,
        "vision.max_pixels": _MOST_PIXELS,
        "vision.projector_type": "paddleocr",
    }


def image_settings(processor: Config) -> Parameters:
    """Return the keys that preprocessor_config.json states: image sizes and normalization."""
    return pixel_settings(processor, most=_MOST_PIXELS) | color_settings(processor)


PADDLEOCR = Family(
    architecture="paddleocr",
    checkpoints=("PaddleOCRVLForConditionalGeneration",),
    names={**NAMES, **TOWER_NAMES},
    parameters=keys,
    image_settings=image_settings,
    image_steps=ImageSteps(
        filter=Filter.BICUBIC, normalization=HALF, others={"temporal_patch_size": (1,)}
    ),
    defaults={"rope_theta": 500_000.0, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5},
    prefixes=(*PREFIXES, ("model.visual.", "visual."), ("model.projector.", "mlp_AR.")),
    ignored=_IGNORED,
    tied=True,
)
