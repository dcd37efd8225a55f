"""LLaVA: a Llama with CLIP's tower and a projector, under the names of llama.cpp's towers.

The reference uses the second-to-last layer's output, so the last layer is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tampu.convert.checkpoint import StoredTensor
from tampu.convert.config import Config
from tampu.convert.families.llama import LLAMA, parameters, rope_factors, transform
from tampu.convert.family import Family, Parameters
from tampu.convert.keys.image import ImageSteps
from tampu.convert.vision import PREFIXES, SIGLIP_LAYER, tower_keys, tower_names
from tampu.vision import CLIP, Filter

_LAYER = re.compile(r"vision_tower\.(?:vision_model\.)?encoder\.layers\.(\d+)\.")

NAMES = {
    "vision_tower.embeddings.class_embedding": "v.class_embd",
    "vision_tower.embeddings.patch_embedding": "v.patch_embd",
    "vision_tower.embeddings.position_embedding": "v.position_embd",
    "vision_tower.pre_layrnorm": "v.pre_ln",
    "vision_tower.post_layernorm": "v.post_ln",
    **tower_names("vision_tower.encoder.layers.{}", SIGLIP_LAYER),
    "multi_modal_projector.linear_1": "mm.0",
    "multi_modal_projector.linear_2": "mm.2",
}


# Published files omit the defaults of a Llama with 7 billion parameters.
_DEFAULTS = {
    "hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "vocab_size": 32_000, "max_position_embeddings": 2048,
}  # fmt: skip


def gather(tensors: Iterable[StoredTensor]) -> Iterable[StoredTensor]:
    """Return all tensors except those of the tower's last layer."""
    layers = [(tensor, _LAYER.search(tensor.name)) for tensor in tensors]
    last = max((int(found[1]) for _, found in layers if found), default=-1)
    return [tensor for tensor, found in layers if not found or int(found[1]) != last]


def keys(config: Config) -> Parameters:
    """Return the keys of `llama` with a CLIP tower."""
    config.require("vision_feature_layer", (-2, None), -2)
    config.require("vision_feature_select_strategy", ("default",), "default")
    config.require("projector_hidden_act", ("gelu",), "gelu")
    text, vision = config.section("text_config"), config.section("vision_config")
    text.require("model_type", ("llama", "mistral"), "llama")
    vision.require("model_type", ("clip_vision_model",), "clip_vision_model")
    vision.require("hidden_act", ("quick_gelu", "gelu"), "quick_gelu")
    tower = tower_keys(vision, image=336, patch=14)
    layers = vision.layers()
    if layers < 2:
        raise vision.error(
            "num_hidden_layers", "must be at least 2: the second-to-last layer is used"
        )
    return (
        parameters(text)
        | tower
        | {
            "vision.block_count": layers - 1,
            "vision.attention.layer_norm_epsilon": vision.number("layer_norm_eps", 1e-5),
            "use_gelu": vision.string("hidden_act", "quick_gelu") == "gelu",
        }
    )


LLAVA = Family(
    architecture="llama",
    checkpoints=("LlavaForConditionalGeneration",),
    names={**LLAMA.names, **NAMES},
    parameters=keys,
    image_steps=ImageSteps(
        filter=Filter.BICUBIC,
        normalization=CLIP,
        is_square=True,
        is_cropped=True,
        others={"do_pad": (False,)},
    ),
    defaults=_DEFAULTS,
    prefixes=PREFIXES,
    optional=frozenset({"v.class_embd", "v.post_ln"}),
    ignored=frozenset({"vision_tower.embeddings.position_ids"}),
    transform=transform,
    generated=rope_factors,
    gather=gather,
)
