"""Parts shared by the converters of vision models: keys of the tower, prefixes of names."""

from __future__ import annotations

from tampu.convert.config import Config, rope_settings
from tampu.convert.family import Parameters

# The same tensors have been saved under several prefixes.
PREFIXES = (
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("model.language_model.", "model."),
    ("model.vision_tower.", "vision_tower."),
    ("vision_tower.vision_model.", "vision_tower."),
    ("model.multi_modal_projector.", "multi_modal_projector."),
    ("model.vision_model.", "vision_model."),
)

SIGLIP_LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_out",
    "layer_norm1": "ln1",
    "layer_norm2": "ln2",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
}
"""A layer of CLIP's and SigLIP's encoders, under llama.cpp's names."""

ATTENTION = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
}


def require_usual_rope(vision: Config) -> None:
    """Refuse rotary settings that towers without keys for them do not have.

    Raises:
        UnsupportedModelError: naming the setting.
    """
    rope = rope_settings(vision)
    rope.require("rope_theta", (None, 10_000), None)
    require_unscaled_rope(rope)


def require_unscaled_rope(rope: Config) -> None:
    """Refuse a tower's scaled positions.

    Raises:
        UnsupportedModelError: naming the setting.
    """
    rope.require("rope_type", (None, "default", "axial"), None)


def tower_names(theirs: str, parts: dict[str, str]) -> dict[str, str]:
    """Return a layer's tensor names: the checkpoint's prefix `theirs` -> `v.blk.{}.`."""
    return {f"{theirs}.{name}": f"v.blk.{{}}.{target}" for name, target in parts.items()}


def tower_keys(vision: Config, *, image: int, patch: int, has_rest: bool = False) -> Parameters:
    """Return the keys common to all vision towers.

    Args:
        vision: the tower's configuration.
        image: the default image size in pixels.
        patch: the default patch size in pixels.
        has_rest: whether pixels at the right and lower edge may be less than a patch.
    """
    side, square = vision.integer("image_size", image), vision.integer("patch_size", patch)
    if side % square and not has_rest:
        raise vision.error("image_size", f"{side} is not a multiple of the patch size {square}")
    width, heads = vision.integer("hidden_size"), vision.integer("num_attention_heads")
    if width % heads:
        raise vision.error("hidden_size", f"{width} is not a multiple of {heads} heads")
    return {
        "vision.image_size": side,
        "vision.patch_size": square,
        "vision.num_channels": vision.integer("num_channels", 3),
        "vision.block_count": vision.layers(),
        "vision.embedding_length": width,
        "vision.feed_forward_length": vision.integer("intermediate_size"),
        "vision.attention.head_count": heads,
    }


def pixel_settings(processor: Config, *, most: int) -> Parameters:
    """Return the fewest and the most pixels of a picture; as in transformers, `size` comes last.

    Args:
        processor: the image processor's settings.
        most: the limit for both; published settings allow pictures that take hours on a CPU.
    """
    size = processor.section("size") if "size" in processor else processor.changed({})
    keys: Parameters = {}
    for ours, theirs in (("min_pixels", "shortest_edge"), ("max_pixels", "longest_edge")):
        if ours in processor:
            keys[f"vision.{ours}"] = min(processor.integer(ours), most)
        elif theirs in size:
            keys[f"vision.{ours}"] = min(size.integer(theirs), most)
    return keys


def color_settings(processor: Config) -> Parameters:
    """Return the keys of a picture's normalization, if the image processor's settings have it."""
    return {
        f"vision.{name}": processor.numbers(name)
        for name in ("image_mean", "image_std")
        if name in processor
    }
