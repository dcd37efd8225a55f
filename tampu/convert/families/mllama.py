"""Llama 3.2 Vision: `mllama` in GGUF, under the names of Ollama's single files.

The tower's gates are stored after tanh, those of the text model before.
"""

from __future__ import annotations

import numpy as np

from tampu.convert.checkpoint import Stored, to_float32
from tampu.convert.config import Config
from tampu.convert.families.llama import NAMES, parameters, rope_factors
from tampu.convert.families.llama import transform as reorder
from tampu.convert.family import Family, Parameters
from tampu.convert.keys.image import ImageSteps
from tampu.convert.lazy_tensor import View
from tampu.convert.vision import ATTENTION, PREFIXES, tower_keys, tower_names
from tampu.vision import CLIP, Filter

_LAYER = "model.layers.{}.cross_attn"
TEXT_NAMES = NAMES | {
    f"{_LAYER}.{part}": f"blk.{{}}.cross_attn_{part}"
    for part in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")
}
GATES = {
    f"{_LAYER}_attn_gate": "blk.{}.cross_attn_attn_gate",
    f"{_LAYER}_mlp_gate": "blk.{}.cross_attn_mlp_gate",
}
_PARTS = ATTENTION | {
    "self_attn.o_proj": "attn_output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
}
_GLOBAL = "vision_model.global_transformer.layers.{}"
VISION_NAMES = {
    "vision_model.patch_embedding": "v.patch_embd",
    "vision_model.layernorm_pre": "v.pre_ln",
    "vision_model.layernorm_post": "v.post_ln",
    "vision_model.gated_positional_embedding.tile_embedding": "v.tile_position_embd",
    "vision_model.pre_tile_positional_embedding.embedding": "v.pre_tile_position_embd",
    "vision_model.post_tile_positional_embedding.embedding": "v.post_tile_position_embd",
    **tower_names("vision_model.transformer.layers.{}", _PARTS),
    "multi_modal_projector": "mm.0",
}
# Full names, and names of the tower's global layers.
OTHER_NAMES = {
    "vision_model.class_embedding": "v.class_embd",
    "vision_model.gated_positional_embedding.embedding": "v.position_embd.weight",
    "vision_model.pre_tile_positional_embedding.gate": "v.pre_tile_position_embd.gate",
    "vision_model.post_tile_positional_embedding.gate": "v.post_tile_position_embd.gate",
    **{f"{_GLOBAL}.{name}": f"v.global.blk.{{}}.{target}" for name, target in _PARTS.items()},
    f"{_GLOBAL}.gate_attn": "v.global.blk.{}.attn_gate",
    f"{_GLOBAL}.gate_ffn": "v.global.blk.{}.ffn_gate",
}


def _same(values: Stored) -> Stored:
    return values


SPLITS: dict[str, dict[str, View]] = {  # one number, used twice
    "vision_model.gated_positional_embedding.gate": {
        "v.position_embd.gate": _same,
        "v.tile_position_embd.gate": _same,
    }
}
_OPTIONAL = frozenset(
    {*OTHER_NAMES.values(), *GATES.values(), "v.position_embd.gate", "v.tile_position_embd.gate"}
    | {target for name, target in TEXT_NAMES.items() if "attn" in name}
)


def keys(config: Config) -> Parameters:
    """Return the keys of `mllama`."""
    text, vision = config.section("text_config"), config.section("vision_config")
    vision.require("hidden_act", ("gelu",), "gelu")
    tower = vision.with_defaults({"num_attention_heads": vision.integer("attention_heads")})
    return {
        **parameters(text),
        **tower_keys(tower, image=448, patch=14),
        "attention.cross_attention_layers": text.integers("cross_attention_layers"),
        "vision.global.block_count": vision.layers("num_global_layers"),
        "vision.max_num_tiles": vision.integer("max_num_tiles", 4),
        "vision.intermediate_layers_indices": vision.integers("intermediate_layers_indices"),
        "vision.attention.layer_norm_epsilon": vision.number("norm_eps", 1e-5),
    }


def transform(name: str, values: Stored, parameters: Parameters) -> Stored:
    """Reorder the rotated queries and keys, and apply tanh to the tower's gates."""
    if name.startswith("v.") and name.endswith("gate"):
        gate = np.tanh(to_float32(values))
        return 1 - gate if name == "v.position_embd.gate" else gate
    return reorder(name, values, parameters)


MLLAMA = Family(
    architecture="mllama",
    checkpoints=("MllamaForConditionalGeneration",),
    names={**TEXT_NAMES, **GATES, **VISION_NAMES, **OTHER_NAMES},
    splits=SPLITS,
    image_steps=ImageSteps(filter=Filter.BILINEAR, normalization=CLIP, is_square=True),
    optional=_OPTIONAL,
    parameters=keys,
    defaults={"rope_theta": 500_000.0, "max_position_embeddings": 131_072},
    prefixes=PREFIXES,
    transform=transform,
    generated=rope_factors,
)
