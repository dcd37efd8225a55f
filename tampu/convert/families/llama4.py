"""Llama 4: `llama4` in GGUF, text alone or with its tower.

Experts are stored as in the checkpoint, but transposed. The reference rotates neighbouring elements
as GGUF's architecture does: no rows are reordered.
"""

from __future__ import annotations

from tampu.convert.config import Config, rope_settings
from tampu.convert.families.llama import GATED, NAMES_WITHOUT_MLP, rope_factors
from tampu.convert.family import Family, Parameters, text_parameters
from tampu.convert.keys.experts import moe_parameters
from tampu.convert.keys.image import ImageSteps
from tampu.convert.lazy_tensor import nth_part, transposed
from tampu.convert.vision import ATTENTION, PREFIXES, require_unscaled_rope, tower_keys, tower_names
from tampu.errors import UnsupportedModelError
from tampu.vision import HALF, Filter

_MLP = "model.layers.{}.feed_forward."
TEXT_NAMES = {
    **NAMES_WITHOUT_MLP,
    _MLP + "router": "blk.{}.ffn_gate_inp",
    **{f"{_MLP}{part}_proj": f"blk.{{}}.ffn_{part}" for part in GATED},
    **{f"{_MLP}shared_expert.{part}_proj": f"blk.{{}}.ffn_{part}_shexp" for part in GATED},
}
SPLITS = {
    _MLP + "experts.gate_up_proj": {
        "blk.{}.ffn_gate_exps.weight": transposed(nth_part(0, axis=-1)),
        "blk.{}.ffn_up_exps.weight": transposed(nth_part(1, axis=-1)),
    },
    _MLP + "experts.down_proj": {"blk.{}.ffn_down_exps.weight": transposed()},
}
# A layer has either a dense part or experts.
OPTIONAL = frozenset(
    name
    for name in [*TEXT_NAMES.values(), *(name for cut in SPLITS.values() for name in cut)]
    if ".ffn_" in name and "norm" not in name
)

_DEFAULTS = {"rope_theta": 500_000.0, "max_position_embeddings": 131_072}
_STRENGTH, _LENGTH = 0.1, 8192  # defaults of attention temperature scaling


def text_keys(config: Config) -> Parameters:
    """Return the keys of `llama4` for a text model's configuration."""
    config.require("hidden_act", ("silu",), "silu")
    keys = text_parameters(config, scalings=("none", "llama3"))
    keys |= moe_parameters(config, width="intermediate_size")
    step = config.integer("interleave_moe_layer_step", 1)
    layers = config.layers()
    mixtures = config.get("moe_layers") or list(range(step - 1, layers, step))
    if mixtures != list(range(step - 1, layers, step)):
        raise UnsupportedModelError(f"{config.where}: moe_layers are not every {step}th layer")
    strength = config.number("attn_scale", _STRENGTH)
    length = config.integer("floor_scale", _LENGTH)
    if strength != _STRENGTH:
        keys["attention.scale"] = strength
    if length != _LENGTH:
        keys["attention.floor_scale"] = length
    return keys | {
        "feed_forward_length": config.integer("intermediate_size_mlp"),
        "interleave_moe_layer_step": step,
        "no_rope_interval": _interval(config, layers),
        "use_qk_norm": config.flag("use_qk_norm", default=True),
        "attention.chunk_size": config.integer("attention_chunk_size", 8192),
        "attention.temperature_tuning": bool(config.get("attn_temperature_tuning", True)),
    }


def _interval(config: Config, layers: int) -> int:
    """Return the period of the layers without RoPE."""
    stated = config.get("no_rope_layers") or []
    interval = config.integer("no_rope_layer_interval", 4)
    names = ("full_attention", "chunked_attention")
    kinds = [names[(index + 1) % interval != 0] for index in range(layers)]
    config.require("layer_types", (None, [], kinds), None)
    if stated and stated != [int((index + 1) % interval != 0) for index in range(layers)]:
        raise UnsupportedModelError(f"{config.where}: no_rope_layers have no regular pattern")
    return interval


LLAMA4_TEXT = Family(
    architecture="llama4",
    checkpoints=("Llama4ForCausalLM",),
    names=TEXT_NAMES,
    splits=SPLITS,
    optional=OPTIONAL,
    parameters=text_keys,
    defaults=_DEFAULTS,
    generated=rope_factors,
)

VISION_NAMES = {
    "vision_model.class_embedding": "v.class_embedding",
    "vision_model.positional_embedding_vlm": "v.positional_embedding_vlm",
    "vision_model.patch_embedding.linear": "v.patch_embedding",
    "vision_model.layernorm_pre": "v.layernorm_pre",
    "vision_model.layernorm_post": "v.layernorm_post",
    **tower_names(
        "vision_model.model.layers.{}",
        ATTENTION
        | {
            "self_attn.o_proj": "attn_output",
            "input_layernorm": "attn_norm",
            "post_attention_layernorm": "ffn_norm",
            "mlp.fc1": "mlp.fc1",
            "mlp.fc2": "mlp.fc2",
        },
    ),
    "vision_model.vision_adapter.mlp.fc1": "v.vision_adapter.mlp.fc1",
    "vision_model.vision_adapter.mlp.fc2": "v.vision_adapter.mlp.fc2",
    "multi_modal_projector.linear_1": "mm.linear_1",
}
_WITHOUT_LEAF = {"v.class_embedding", "v.positional_embedding_vlm"}
_MOST_TILES = 1024  # the engine's limit too


def keys(config: Config) -> Parameters:
    """Return the keys of `llama4` with its tower."""
    vision = config.section("vision_config")
    vision.require("hidden_act", ("gelu",), "gelu")
    rope = rope_settings(vision)
    require_unscaled_rope(rope)
    return (
        text_keys(config.section("text_config"))
        | tower_keys(vision, image=448, patch=14)
        | {
            "vision.attention.layer_norm_epsilon": vision.number("norm_eps", 1e-5),
            "vision.rope.freq_base": rope.number("rope_theta", 10_000.0),
            "vision.pixel_shuffle_ratio": vision.number("pixel_shuffle_ratio", 0.5),
        }
    )


def image_settings(processor: Config) -> Parameters:
    """Return the key that preprocessor_config.json states: the most tiles of a picture."""
    if "max_patches" not in processor:
        return {}
    return {"vision.max_num_tiles": processor.integer("max_patches", maximum=_MOST_TILES)}


LLAMA4 = Family(
    architecture="llama4",
    checkpoints=("Llama4ForConditionalGeneration",),
    names=TEXT_NAMES | VISION_NAMES,
    splits=SPLITS,
    optional=OPTIONAL | _WITHOUT_LEAF,
    parameters=keys,
    image_settings=image_settings,
    image_steps=ImageSteps(filter=Filter.BILINEAR, normalization=HALF, is_square=True),
    defaults=_DEFAULTS,
    prefixes=PREFIXES,
    generated=rope_factors,
)
