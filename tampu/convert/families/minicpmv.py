"""MiniCPM-V 4.6: a Qwen 3.5 with a SigLIP encoder of an image and its slices.

The vision encoder's tensors and keys have llama.cpp's names.
"""

from __future__ import annotations

from dataclasses import replace

from tampu.convert.config import Config
from tampu.convert.families.qwen35 import QWEN35
from tampu.convert.family import Family, Parameters
from tampu.convert.keys.image import ImageSteps
from tampu.convert.vision import PREFIXES, SIGLIP_LAYER, tower_keys, tower_names
from tampu.vision import HALF, Filter

_MERGER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_out",
    "layer_norm1": "ln1",
    "pre_norm": "ds_ln",
    "linear_1": "ds_ffn_up",
    "linear_2": "ds_ffn_down",
}
NAMES = {
    "vision_tower.embeddings.patch_embedding": "v.patch_embd",
    "vision_tower.embeddings.position_embedding": "v.position_embd",
    "vision_tower.post_layernorm": "v.post_ln",
    **tower_names("vision_tower.encoder.layers.{}", SIGLIP_LAYER),
    **{
        f"vision_tower.vit_merger.{theirs}": f"v.vit_merger.{ours}"
        for theirs, ours in _MERGER.items()
    },
    "merger.pre_norm": "mm.input_norm",
    "merger.linear_1": "mm.up",
    "merger.linear_2": "mm.down",
}
# Published files omit default values.
_VISION_DEFAULTS = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
    "num_attention_heads": 12,
}  # fmt: skip


def parameters(config: Config) -> Parameters:
    """Return the keys of `qwen35` and of the encoder."""
    config.require("drop_vision_last_layer", (False,), default=False)
    config.require("downsample_mode", ("16x",), "16x")
    config.require("merge_kernel_size", ([2, 2],), [2, 2])
    config.require("merger_times", (1,), 1)
    for key in ("image_size", "patch_size"):
        config.get(key)  # preprocessor_config.json and the vision encoder have them
    vision = config.section("vision_config").with_defaults(_VISION_DEFAULTS)
    vision.require("hidden_act", ("gelu_pytorch_tanh",), "gelu_pytorch_tanh")
    vision.require("window_kernel_size", ([2, 2],), [2, 2])
    layer = config.natural("insert_layer_id", vision.natural("insert_layer_id", 6))
    if layer >= vision.layers():
        raise config.error("insert_layer_id", f"layer {layer} does not exist")
    return {
        **QWEN35.parameters(config),
        **tower_keys(vision, image=980, patch=14),
        "vision.attention.layer_norm_epsilon": vision.number("layer_norm_eps", 1e-6),
        "vision.image_size": 448,
        "vision.wa_layer_indexes": [layer],
        "vision.projector.scale_factor": 4,
        "vision.projector_type": "minicpmv4_6",
    }


def image_settings(processor: Config) -> Parameters:
    """Return the keys that preprocessor_config.json states: the size and number of slices."""
    slices = processor.integer("max_slice_nums", 9, maximum=64)
    slices = slices if processor.flag("slice_mode", default=True) else 1
    return {
        "vision.image_size": processor.integer("scale_resolution", 448, maximum=4096),
        "vision.preproc_max_tiles": slices,
    }


MINICPM_V: Family = replace(
    QWEN35,
    checkpoints=("MiniCPMV4_6ForConditionalGeneration",),
    names={**QWEN35.names, **NAMES},
    prefixes=(*PREFIXES, ("model.merger.mlp.0.", "merger.")),
    parameters=parameters,
    image_settings=image_settings,
    image_steps=ImageSteps(
        filter=Filter.BICUBIC,
        normalization=HALF,
        # The number of an image in its conversation, before each, is left out, as in llama.cpp.
        others={"downsample_mode": ("16x",), "use_image_id": (True, False)},
    ),
    text_only=QWEN35,
)
