"""Mistral Small 3 and Ministral 3: `mistral3` in GGUF, text alone or with the Pixtral tower.

The text model is like `llama`, with YaRN and attention temperature scaling. The tower's tensors get
the names of Ollama's single files; it rotates halves of heads, as the checkpoint does.
"""

from __future__ import annotations

from tampu.convert.config import Config, read_rope, rope_settings
from tampu.convert.families.llama import NAMES, parameters, rope_factors, transform
from tampu.convert.family import Family, Parameters
from tampu.convert.keys.image import ImageSteps
from tampu.convert.vision import PREFIXES, require_unscaled_rope, tower_keys, tower_names
from tampu.vision import CLIP, Filter

VISION_NAMES = {
    "vision_tower.patch_conv": "v.patch_conv",
    "vision_tower.ln_pre": "v.encoder_norm",
    **tower_names(
        "vision_tower.transformer.layers.{}",
        {
            "attention_norm": "attn_norm",
            "attention.q_proj": "attn_q",
            "attention.k_proj": "attn_k",
            "attention.v_proj": "attn_v",
            "attention.o_proj": "attn_output",
            "ffn_norm": "ffn_norm",
            "feed_forward.gate_proj": "ffn_gate",
            "feed_forward.up_proj": "ffn_up",
            "feed_forward.down_proj": "ffn_down",
        },
    ),
    "multi_modal_projector.norm": "mm.norm",
    "multi_modal_projector.patch_merger.merging_layer": "mm.patch_merger.merging_layer",
    "multi_modal_projector.linear_1": "mm.linear_1",
    "multi_modal_projector.linear_2": "mm.linear_2",
}

_LONGEST_EDGE = 16_384  # the engine's limit too


def text_keys(config: Config) -> Parameters:
    """Return the keys of `mistral3` for a text model's configuration."""
    keys = parameters(config)
    settings = read_rope(config).settings
    if "llama_4_scaling_beta" in settings:
        strength = settings.number("llama_4_scaling_beta")
        keys["attention.temperature_scale"] = strength  # llama.cpp's name
        keys["rope.scaling_beta"] = strength  # Ollama's
    return keys


def keys(config: Config) -> Parameters:
    """Return the keys of `mistral3` with the Pixtral tower."""
    config.require("vision_feature_layer", (-1, [-1]), -1)
    config.require("projector_hidden_act", ("gelu",), "gelu")
    vision = config.section("vision_config")
    vision.require("model_type", ("pixtral",), "pixtral")
    vision.require("hidden_act", ("silu",), "silu")
    tower = tower_keys(vision, image=1540, patch=14)
    head_size = vision.integer(
        "head_dim", vision.integer("hidden_size") // vision.integer("num_attention_heads")
    )
    rope = rope_settings(vision)
    require_unscaled_rope(rope)
    return (
        text_keys(config.section("text_config"))
        | tower
        | {
            "vision.attention.key_length": head_size,
            "vision.attention.layer_norm_epsilon": 1e-5,  # the reference's, in none of its files
            "vision.rope.freq_base": rope.number("rope_theta", 10_000.0),
            "vision.longest_edge": vision.integer("image_size", 1540),
            "spatial_merge_size": config.integer("spatial_merge_size", 2),
        }
    )


def image_settings(processor: Config) -> Parameters:
    """Return the key that preprocessor_config.json states: the longest side of a picture."""
    size = processor.section("size") if "size" in processor else processor
    if "longest_edge" not in size:
        return {}
    return {"vision.longest_edge": size.integer("longest_edge", maximum=_LONGEST_EDGE)}


MISTRAL3_TEXT = Family(
    architecture="mistral3",
    checkpoints=("Ministral3ForCausalLM",),
    names=NAMES,
    defaults={"max_position_embeddings": 262_144},
    parameters=text_keys,
    transform=transform,
    generated=rope_factors,
)

MISTRAL3 = Family(
    architecture="mistral3",
    checkpoints=("Mistral3ForConditionalGeneration",),
    names=NAMES | VISION_NAMES,
    parameters=keys,
    image_settings=image_settings,
    image_steps=ImageSteps(filter=Filter.BICUBIC, normalization=CLIP),
    prefixes=PREFIXES,
    transform=transform,
    generated=rope_factors,
)
