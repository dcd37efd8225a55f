"""Gemma 3: the text models, and those with a SigLIP tower and its projector in the same file.

Norms are stored as their distance from 1, so 1 is added (not in the vision tower). The vision
tensors get the names and the keys of Ollama's single files: `v.*`, `mm.*`, `vision.*`.
"""

from __future__ import annotations

from tampu.convert.checkpoint import Stored, to_float32
from tampu.convert.config import Config, read_rope
from tampu.convert.family import Family, Parameters, text_parameters
from tampu.errors import UnsupportedModelError

TEXT_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.layers.{}.input_layernorm": "blk.{}.attn_norm",
    "model.layers.{}.self_attn.q_proj": "blk.{}.attn_q",
    "model.layers.{}.self_attn.k_proj": "blk.{}.attn_k",
    "model.layers.{}.self_attn.v_proj": "blk.{}.attn_v",
    "model.layers.{}.self_attn.o_proj": "blk.{}.attn_output",
    "model.layers.{}.self_attn.q_norm": "blk.{}.attn_q_norm",
    "model.layers.{}.self_attn.k_norm": "blk.{}.attn_k_norm",
    "model.layers.{}.post_attention_layernorm": "blk.{}.post_attention_norm",
    "model.layers.{}.pre_feedforward_layernorm": "blk.{}.ffn_norm",
    "model.layers.{}.post_feedforward_layernorm": "blk.{}.post_ffw_norm",
    "model.layers.{}.mlp.gate_proj": "blk.{}.ffn_gate",
    "model.layers.{}.mlp.up_proj": "blk.{}.ffn_up",
    "model.layers.{}.mlp.down_proj": "blk.{}.ffn_down",
    "model.norm": "output_norm",
    "lm_head": "output",
}

VISION_NAMES = {
    "vision_tower.embeddings.patch_embedding": "v.patch_embedding",
    "vision_tower.embeddings.position_embedding": "v.position_embedding",
    "vision_tower.encoder.layers.{}.layer_norm1": "v.blk.{}.layer_norm1",
    "vision_tower.encoder.layers.{}.self_attn.q_proj": "v.blk.{}.attn_q",
    "vision_tower.encoder.layers.{}.self_attn.k_proj": "v.blk.{}.attn_k",
    "vision_tower.encoder.layers.{}.self_attn.v_proj": "v.blk.{}.attn_v",
    "vision_tower.encoder.layers.{}.self_attn.out_proj": "v.blk.{}.attn_output",
    "vision_tower.encoder.layers.{}.layer_norm2": "v.blk.{}.layer_norm2",
    "vision_tower.encoder.layers.{}.mlp.fc1": "v.blk.{}.mlp.fc1",
    "vision_tower.encoder.layers.{}.mlp.fc2": "v.blk.{}.mlp.fc2",
    "vision_tower.post_layernorm": "v.post_layernorm",
    "multi_modal_projector.mm_soft_emb_norm": "mm.mm_soft_emb_norm",
    "multi_modal_projector.mm_input_projection_weight": "mm.mm_input_projection.weight",
}

# The same tensors have been saved under several prefixes.
PREFIXES = (
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("model.language_model.", "model."),
    ("model.vision_tower.", "vision_tower."),
    ("vision_tower.vision_model.", "vision_tower."),
    ("model.multi_modal_projector.", "multi_modal_projector."),
)

# Published files omit default values.
_TEXT_DEFAULTS = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
    "rope_theta": 1e6,
}
_PATTERN = 6  # every sixth layer has global attention


def text_keys(config: Config) -> Parameters:
    """Return the keys of `gemma3` for a text model's configuration."""
    config = Config(_TEXT_DEFAULTS | {k: v for k, v in config.values.items() if v is not None})
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
    if pattern != _PATTERN:
        keys["attention.sliding_window_pattern"] = pattern
    scalar = config.number("query_pre_attn_scalar")
    if scalar != config.integer("head_dim"):
        keys["attention.scale"] = scalar**-0.5
    if "final_logit_softcapping" in config:
        keys["final_logit_softcapping"] = config.number("final_logit_softcapping")
    return keys


def local_base(config: Config) -> float:
    """Return the RoPE base of the sliding-window layers, which have no RoPE scaling."""
    if "rope_parameters" not in config:
        return config.number("rope_local_base_freq", 10_000.0)
    rope = read_rope(config, layers="sliding_attention")
    if rope.kind != "none":
        raise UnsupportedModelError(
            f"{rope.settings.where}: sliding layers with scaled positions are not supported"
        )
    return rope.base


def layer_pattern(config: Config, layers: int, *, usual: int = _PATTERN) -> int:
    """Return the period of the global layers.

    Args:
        config: the text model's configuration.
        layers: the number of layers.
        usual: the default period.

    Raises:
        UnsupportedModelError: if `layer_types` has no such period.
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
    vision = config.section("vision_config")
    vision.require("hidden_act", ("gelu_pytorch_tanh",), "gelu_pytorch_tanh")
    vision.require("vision_use_head", (False,), default=False)
    image, patch = vision.integer("image_size", 224), vision.integer("patch_size", 16)
    tokens = config.integer("mm_tokens_per_image", 256)
    side = round(tokens**0.5)
    if image % patch or side * side != tokens or (image // patch) % side:
        reason = f"{tokens} tokens for an image of {image} in patches of {patch}"
        raise config.error("mm_tokens_per_image", reason)
    return {
        "vision.image_size": image,
        "vision.patch_size": patch,
        "vision.num_channels": vision.integer("num_channels", 3),
        "vision.block_count": vision.layers("num_hidden_layers", 12),
        "vision.embedding_length": vision.integer("hidden_size", 768),
        "vision.feed_forward_length": vision.integer("intermediate_size", 3072),
        "vision.attention.head_count": vision.integer("num_attention_heads", 12),
        "vision.attention.layer_norm_epsilon": vision.number("layer_norm_eps", 1e-6),
        "mm.tokens_per_image": tokens,
    }


def transform(name: str, values: Stored, parameters: Parameters) -> Stored:  # noqa: ARG001
    """Add 1 to the norms of the text model and of the projector."""
    if name.endswith("_norm.weight") and not name.startswith("v."):
        return to_float32(values) + 1
    return values


GEMMA3_TEXT = Family(
    architecture="gemma3",
    checkpoints=("Gemma3ForCausalLM",),
    names=TEXT_NAMES,
    parameters=text_keys,
    prefixes=PREFIXES,
    tied=True,
    transform=transform,
)

GEMMA3 = Family(
    architecture="gemma3",
    checkpoints=("Gemma3ForConditionalGeneration",),
    names=TEXT_NAMES | VISION_NAMES,
    parameters=lambda config: text_keys(config.section("text_config")) | vision_keys(config),
    prefixes=PREFIXES,
    tied=True,
    transform=transform,
)
