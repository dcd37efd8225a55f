"""Gemma 1 to 3: the text models, and those with a SigLIP tower and its projector.

Norms are stored as their distance from 1, so 1 is added (not in the vision tower). The vision
tensors get the names and the keys of Ollama's single files: `v.*`, `mm.*`, `vision.*`.
"""

from __future__ import annotations

from tampu.convert.checkpoint import Stored, to_float32
from tampu.convert.config import Config, read_rope, rope_settings
from tampu.convert.families.llama import NAMES, QK_NORM_NAMES
from tampu.convert.family import Family, Parameters, text_parameters
from tampu.convert.keys.image import ImageSteps
from tampu.convert.vision import ATTENTION, PREFIXES, tower_keys, tower_names
from tampu.errors import UnsupportedModelError
from tampu.vision import HALF, Filter

GEMMA2_NAMES = NAMES | {
    "model.layers.{}.post_attention_layernorm": "blk.{}.post_attention_norm",
    "model.layers.{}.pre_feedforward_layernorm": "blk.{}.ffn_norm",
    "model.layers.{}.post_feedforward_layernorm": "blk.{}.post_ffw_norm",
}
GEMMA3_NAMES = GEMMA2_NAMES | QK_NORM_NAMES

VISION_NAMES = {
    "vision_tower.embeddings.patch_embedding": "v.patch_embedding",
    "vision_tower.embeddings.position_embedding": "v.position_embedding",
    **tower_names(
        "vision_tower.encoder.layers.{}",
        ATTENTION
        | {"self_attn.out_proj": "attn_output"}
        | {name: name for name in ("layer_norm1", "layer_norm2", "mlp.fc1", "mlp.fc2")},
    ),
    "vision_tower.post_layernorm": "v.post_layernorm",
    "multi_modal_projector.mm_soft_emb_norm": "mm.mm_soft_emb_norm",
    "multi_modal_projector.mm_input_projection_weight": "mm.mm_input_projection.weight",
}

# Published files omit default values.
_TEXT_DEFAULTS = {
    "vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096,
    "max_position_embeddings": 131_072, "query_pre_attn_scalar": 256, "rope_theta": 1e6,
}  # fmt: skip
_VISION_DEFAULTS = {
    "num_hidden_layers": 12, "hidden_size": 768, "intermediate_size": 3072,
    "num_attention_heads": 12,
}  # fmt: skip
_GEMMA2_PATTERN = 2  # every other layer has global attention
_GEMMA3_PATTERN = 6
_LAYERS_27B = 46  # of Gemma 2; readers know this size's attention scale
_SCALAR_27B = 144


def gemma_parameters(config: Config) -> Parameters:
    """Return the keys of `gemma`; its first files state GELU and mean its tanh form."""
    config.require("hidden_act", ("gelu", "gelu_pytorch_tanh"), "gelu_pytorch_tanh")
    config.require("hidden_activation", ("gelu_pytorch_tanh", None), None)
    config.require("use_bidirectional_attention", (False, None), default=False)
    return text_parameters(config, scalings=("none",))


def gemma2_parameters(config: Config) -> Parameters:
    """Return the keys of `gemma2`."""
    config.require("hidden_activation", ("gelu_pytorch_tanh",), "gelu_pytorch_tanh")
    config.require("use_bidirectional_attention", (False, None), default=False)
    keys = text_parameters(config, scalings=("none",))
    if layer_pattern(config, config.layers(), usual=_GEMMA2_PATTERN) != _GEMMA2_PATTERN:
        raise UnsupportedModelError(
            f"{config.where}: layer_types do not alternate; gemma2 has no other pattern"
        )
    config.get("sliding_window_size")  # published files have both; transformers reads the other
    keys |= {
        "attention.sliding_window": config.integer("sliding_window", 4096),
        "attn_logit_softcapping": config.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": config.number("final_logit_softcapping", 30.0),
    }
    scalar = config.number("query_pre_attn_scalar", 256)
    usual = _SCALAR_27B if keys["block_count"] == _LAYERS_27B else config.integer("head_dim")
    if scalar != usual:
        keys["attention.scale"] = scalar**-0.5
    return keys


def text_keys(config: Config) -> Parameters:
    """Return the keys of `gemma3` for a text model's configuration."""
    config = config.with_defaults(_TEXT_DEFAULTS)
    config.require("hidden_activation", ("gelu_pytorch_tanh",), "gelu_pytorch_tanh")
    config.require("attn_logit_softcapping", (None,), None)
    config.require("use_bidirectional_attention", (False, None), default=False)
    keys = text_parameters(config, scalings=("none", "linear"))
    base = local_base(config)
    keys |= {
        "attention.sliding_window": config.integer("sliding_window"),
        "rope.freq_base_swa": base,  # llama.cpp's name
        "rope.local.freq_base": base,  # Ollama's
    }
    pattern = layer_pattern(config, config.layers())
    if pattern != _GEMMA3_PATTERN:
        keys["attention.sliding_window_pattern"] = pattern
    scalar = config.number("query_pre_attn_scalar")
    if scalar != config.integer("head_dim"):
        keys["attention.scale"] = scalar**-0.5
    if "final_logit_softcapping" in config:
        keys["final_logit_softcapping"] = config.number("final_logit_softcapping")
    return keys


def local_base(config: Config) -> float:
    """Return the RoPE base of the sliding-window layers, which have no RoPE scaling."""
    if "rope_parameters" not in config or "sliding_attention" not in rope_settings(config):
        return config.number("rope_local_base_freq", 10_000.0)
    rope = read_rope(config, layers="sliding_attention")
    if rope.kind != "none":
        raise UnsupportedModelError(
            f"{rope.settings.where}: sliding layers with scaled positions are not supported"
        )
    return rope.base


def layer_pattern(config: Config, layers: int, *, usual: int = _GEMMA3_PATTERN) -> int:
    """Return the period of the global layers.

    Args:
        config: the text model's configuration.
        layers: the number of layers.
        usual: the default period.
    """
    stated = config.integer(
        "sliding_window_pattern", config.integer("_sliding_window_pattern", usual)
    )
    kinds = config.strings("layer_types")
    if not kinds:
        return stated
    if len(kinds) != layers:
        raise config.error("layer_types", f"{len(kinds)} entries for {layers} layers")
    first = kinds.index("full_attention") + 1 if "full_attention" in kinds else 0
    period = first or max(stated, layers + 1)
    names = ("sliding_attention", "full_attention")
    if kinds != [names[(index + 1) % period == 0] for index in range(layers)]:
        raise UnsupportedModelError(f"{config.where}: layer_types has no regular pattern")
    return period


def vision_keys(config: Config) -> Parameters:
    """Return the keys of the SigLIP tower and of the projector."""
    vision = config.section("vision_config").with_defaults(_VISION_DEFAULTS)
    vision.require("hidden_act", ("gelu_pytorch_tanh",), "gelu_pytorch_tanh")
    vision.require("vision_use_head", (False,), default=False)
    image, patch = vision.integer("image_size", 224), vision.integer("patch_size", 16)
    tokens = config.integer("mm_tokens_per_image", 256)
    side = round(tokens**0.5)
    if image % patch or side * side != tokens or (image // patch) % side:
        reason = f"{tokens} tokens for an image of {image} in patches of {patch}"
        raise config.error("mm_tokens_per_image", reason)
    return tower_keys(vision, image=image, patch=patch) | {
        "vision.attention.layer_norm_epsilon": vision.number("layer_norm_eps", 1e-6),
        "mm.tokens_per_image": tokens,
    }


def transform(name: str, values: Stored, parameters: Parameters) -> Stored:  # noqa: ARG001
    """Add 1 to the norms of the text model and of the projector."""
    if name.endswith("_norm.weight") and not name.startswith("v."):
        return to_float32(values) + 1
    return values


GEMMA = Family(
    architecture="gemma",
    checkpoints=("GemmaForCausalLM",),
    names=NAMES,
    defaults={"max_position_embeddings": 8192, "head_dim": 256},
    parameters=gemma_parameters,
    tied=True,
    transform=transform,
)

GEMMA2 = Family(
    architecture="gemma2",
    checkpoints=("Gemma2ForCausalLM",),
    names=GEMMA2_NAMES,
    defaults={"max_position_embeddings": 8192},
    parameters=gemma2_parameters,
    tied=True,
    transform=transform,
)

GEMMA3_TEXT = Family(
    architecture="gemma3",
    checkpoints=("Gemma3ForCausalLM",),
    names=GEMMA3_NAMES,
    parameters=text_keys,
    prefixes=PREFIXES,
    tied=True,
    transform=transform,
)

GEMMA3 = Family(
    architecture="gemma3",
    checkpoints=("Gemma3ForConditionalGeneration",),
    names=GEMMA3_NAMES | VISION_NAMES,
    parameters=lambda config: text_keys(config.section("text_config")) | vision_keys(config),
    image_steps=ImageSteps(filter=Filter.BILINEAR, normalization=HALF, is_square=True),
    prefixes=PREFIXES,
    tied=True,
    transform=transform,
)
