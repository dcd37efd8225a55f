"""Idefics 3, SmolVLM and SmolVLM 2: a Llama with a SigLIP encoder of tiles.

The vision encoder's tensors and keys have llama.cpp's names.
"""

from __future__ import annotations

from tampu.convert.config import Config
from tampu.convert.families.llama import LLAMA, parameters, rope_factors, transform
from tampu.convert.family import Family, Parameters
from tampu.convert.keys.image import ImageSteps
from tampu.convert.vision import SIGLIP_LAYER, tower_keys, tower_names
from tampu.vision import HALF, Filter

NAMES = {
    "vision_model.embeddings.patch_embedding": "v.patch_embd",
    "vision_model.embeddings.position_embedding": "v.position_embd",
    "vision_model.post_layernorm": "v.post_ln",
    **tower_names("vision_model.encoder.layers.{}", SIGLIP_LAYER),
    "connector.modality_projection.proj": "mm.model.fc",
}
PREFIXES = (
    ("model.text_model.", "model."),
    ("model.vision_model.", "vision_model."),
    ("model.connector.", "connector."),
)
# Published files omit default values.
_VISION_DEFAULTS = {
    "num_hidden_layers": 12, "hidden_size": 1152, "intermediate_size": 3072,
    "num_attention_heads": 16,
}  # fmt: skip
_MOST_TILES = 6  # on a side, as the vocabulary has marks for them


def keys(config: Config) -> Parameters:
    """Return the keys of `llama` with a SigLIP encoder."""
    text = config.section("text_config")
    text.require("model_type", ("llama",), "llama")
    text.require("qk_layer_norms", (False,), default=False)
    text.require("use_resampler", (False,), default=False)
    vision = config.section("vision_config").with_defaults(_VISION_DEFAULTS)
    vision.require("hidden_act", ("gelu_pytorch_tanh",), "gelu_pytorch_tanh")
    for section, unused in ((config, "image_seq_len"), (text, "perceiver_config"),
                            (text, "pixel_shuffle_factor"), (vision, "max_image_size"),
                            (vision, "size"), (vision, "use_base_siglip")):  # fmt: skip
        section.get(unused)  # transformers reads none of them
    tower = tower_keys(vision, image=224, patch=32, has_rest=True)
    merge, side = config.integer("scale_factor", 2), vision.integer("image_size", 224)
    row = side // vision.integer("patch_size", 32)
    if row % merge:
        raise config.error("scale_factor", f"{merge} does not divide {row} patches in a row")
    return {
        **parameters(text),
        **tower,
        "vision.attention.layer_norm_epsilon": vision.number("layer_norm_eps", 1e-6),
        "vision.projector.scale_factor": merge,
        "vision.projector_type": "idefics3",
    }


def image_settings(processor: Config) -> Parameters:
    """Return the key that preprocessor_config.json states: the longer side of a resized picture."""
    size = processor.section("size") if "size" in processor else processor.changed({})
    if "longest_edge" not in size:
        return {}
    longest = size.integer("longest_edge", maximum=4096)
    if "max_image_size" in processor:
        tile = processor.section("max_image_size").integer("longest_edge")
        if longest > _MOST_TILES * tile:
            raise size.error(
                "longest_edge", f"{longest} is more than {_MOST_TILES} tiles of {tile}"
            )
    return {"vision.preproc_image_size": longest}


IDEFICS3 = Family(
    architecture="llama",
    checkpoints=("Idefics3ForConditionalGeneration", "SmolVLMForConditionalGeneration"),
    names={**LLAMA.names, **NAMES},
    parameters=keys,
    image_settings=image_settings,
    image_steps=ImageSteps(
        filter=Filter.LANCZOS, normalization=HALF, others={"do_image_splitting": (True,)}
    ),
    defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 2048},
    prefixes=PREFIXES,
    transform=transform,
    generated=rope_factors,
)
