"""DeepSeek-OCR 1 and 2: `deepseek2-ocr`, a mixture of experts, with their vision encoders.

The tensors and keys have llama.cpp's names. config.json is DeepSeek's or, of the second, that of
transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tampu.convert.checkpoint import Checkpoint, Stored
from tampu.convert.config import Config, rope_settings
from tampu.convert.experts import OF_SOME_LAYERS, ROUTER, SHARED, STACKS
from tampu.convert.families.deepseek2 import expert_keys
from tampu.convert.families.llama import NAMES
from tampu.convert.family import Family, Parameters, text_parameters
from tampu.convert.keys.image import ImageSteps
from tampu.convert.lazy_tensor import View, nth_part
from tampu.convert.vision import require_unscaled_rope, tower_keys, tower_names
from tampu.convert.vocabulary import has_template
from tampu.vision import HALF, Filter

_SAM_LAYER = {
    "norm1": "pre_ln",
    "norm2": "post_ln",
    "attn.qkv": "attn.qkv",
    "attn.proj": "attn.out",
    "mlp.lin1": "mlp.lin1",
    "mlp.lin2": "mlp.lin2",
}
_SAM_NAMES = {
    "sam.patch_embed.proj": "v.sam.patch_embd",
    **{f"sam.blocks.{{}}.{name}": f"v.sam.blk.{{}}.{to}" for name, to in _SAM_LAYER.items()},
    **{f"sam.neck{index}": f"v.sam.neck.{index}" for index in range(4)},
    "sam.net_2": "v.sam.net_2",
    "sam.net_3": "v.sam.net_3",
    "projector": "mm.model.fc",
}
_PREFIXES = (
    ("model.sam_model.", "sam."),
    *((f"sam.neck.{index}.", f"sam.neck{index}.") for index in range(4)),
    ("model.projector.layers.", "projector."),
)
_LAYER = {
    "input_layernorm": "ln1",
    "post_attention_layernorm": "ln2",
    **{f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"},
    "self_attn.o_proj": "attn_out",
    **{f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
}
_QUERY_NAMES = {
    **tower_names("queries.layers.{}", _LAYER),
    "queries.norm": "v.post_ln",
    "model.qwen2_model.query_768": "v.resample_query_768",
    "model.qwen2_model.query_1024": "v.resample_query_1024",
}
_CLIP = "model.vision_model."
_CLIP_NAMES = {
    f"{_CLIP}embeddings.position_embedding": "v.position_embd",
    f"{_CLIP}pre_layrnorm": "v.pre_ln",  # sic
    **tower_names(
        f"{_CLIP}transformer.layers.{{}}",
        {
            "layer_norm1": "ln1",
            "layer_norm2": "ln2",
            "self_attn.out_proj": "attn_out",
            "mlp.fc1": "ffn_up",
            "mlp.fc2": "ffn_down",
        },
    ),
}
_TEXT_NAMES = NAMES | ROUTER | SHARED
# DeepSeek's config.json leaves these to its code.
_SAM_DEFAULTS = {
    "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "image_size": 1024,
    "patch_size": 16, "window_size": 14, "global_attn_indexes": [2, 5, 8, 11], "mlp_ratio": 4.0,
    "qkv_bias": True, "hidden_act": "gelu", "layer_norm_eps": 1e-6,
}  # fmt: skip
_ENCODER_DEFAULTS = {
    "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14,
    "num_key_value_heads": 2, "intermediate_size": 4864, "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
}  # fmt: skip
# DeepSeek's names of keys.
_SHORT = {"width": "hidden_size", "layers": "num_hidden_layers", "heads": "num_attention_heads"}
# The words of a conversation alone, as llama.cpp has it: checkpoints have no template.
_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def _whole(values: Stored) -> Stored:
    return values


def _without_batch(values: Stored) -> Stored:
    """Return positions without the axis of images."""
    return values.reshape(values.shape[1:])


# Checkpoints have these tensors without `.weight`; the separator's name is spelled so everywhere.
_SPLITS: Mapping[str, Mapping[str, View]] = {
    "sam.pos_embed": {"v.sam.pos_embd.weight": _without_batch},
    "sam.blocks.{}.attn.rel_pos_h": {"v.sam.blk.{}.attn.pos_h.weight": _whole},
    "sam.blocks.{}.attn.rel_pos_w": {"v.sam.blk.{}.attn.pos_w.weight": _whole},
    "model.view_seperator": {"v.view_seperator": _whole},
}
_CLIP_SPLITS: Mapping[str, Mapping[str, View]] = {
    "model.image_newline": {"v.image_newline": _whole},
    f"{_CLIP}embeddings.class_embedding": {"v.class_embd": _whole},
    **{
        f"{_CLIP}transformer.layers.{{}}.self_attn.qkv_proj.{leaf}": {
            f"v.blk.{{}}.attn_{part}.{leaf}": nth_part(index, axis=0, count=3)
            for index, part in enumerate("qkv")
        }
        for leaf in ("weight", "bias")
    },
}


def clip_parameters(config: Config) -> Parameters:
    """Return the keys of DeepSeek-OCR: those of CLIP's encoder are of CLIP alone."""
    vision, sam = _deepseek_towers(config)
    clip = vision.section("width").section("clip-l-14-224").renamed(_SHORT)
    width = clip.integer("hidden_size")
    keys = {**clip.values, "intermediate_size": 4 * width}
    return {
        **text_keys(_text(config)),
        **sam_keys(sam),
        **tower_keys(clip.changed(keys), image=224, patch=14),
        "vision.attention.layer_norm_epsilon": 1e-6,  # SAM's, as llama.cpp has it
        "vision.preproc_image_size": vision.integer("image_size", 1024) * 5 // 8,
        "vision.projector_type": "deepseekocr",
    }


def parameters(config: Config) -> Parameters:
    """Return the keys of DeepSeek-OCR 2."""
    sam, encoder, side = _towers(config)
    require_unscaled_rope(rope_settings(encoder))
    rope_settings(encoder).require("rope_theta", (1_000_000, 1_000_000.0), None)
    encoder.require("hidden_act", ("silu",), "silu")
    encoder.require("use_sliding_window", (False,), default=False)
    heads, kv_heads = encoder.integer("num_attention_heads"), encoder.integer("num_key_value_heads")
    if heads % kv_heads:
        raise encoder.error("num_key_value_heads", f"{heads} heads are not a multiple of it")
    for key in ("vocab_size", "max_window_layers", "layer_types", "sliding_window",
                "tie_word_embeddings"):  # fmt: skip
        encoder.get(key)  # it has no embeddings, and without a window the others say nothing
    patch = sam.integer("patch_size")
    square = {**encoder.values, "image_size": side, "patch_size": patch}
    return {
        **text_keys(_text(config)),
        **sam_keys(sam),
        **tower_keys(encoder.changed(square), image=side, patch=patch),
        "vision.attention.head_count_kv": kv_heads,
        "vision.attention.layer_norm_epsilon": encoder.number("rms_norm_eps"),
        "vision.preproc_image_size": side * 3 // 4,
        "vision.projector_type": "deepseekocr2",
    }


def text_keys(text: Config) -> Parameters:
    """Return the keys of the text model, which has no latent attention."""
    for key, none in (("use_mla", False), ("kv_lora_rank", None), ("q_lora_rank", None)):
        text.require(key, (none, None), none)
    for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"):
        text.require(key, (0, None), 0)
    for key in ("lm_head", "rm_head"):
        text.get(key)  # the tensors show it
    text.require("hidden_act", ("silu",), "silu")
    text.require("attention_bias", (False,), default=False)
    text.require("mlp_bias", (False,), default=False)
    text.require("tie_word_embeddings", (False,), default=False)
    text.require("topk_method", ("greedy",), "greedy")
    with_method = text.changed({**text.values, "topk_method": "greedy"})
    return {**text_parameters(text, scalings=("none",)), **expert_keys(with_method)}


def sam_keys(sam: Config) -> Parameters:
    """Return the keys of SAM's encoder."""
    sam.require("hidden_act", ("gelu",), "gelu")
    sam.require("qkv_bias", (True,), default=True)
    sam.require("use_rel_pos", (True,), default=True)
    sam.require("use_abs_pos", (True,), default=True)
    sam.require("layer_norm_eps", (1e-6,), 1e-6)
    for key in ("global_attn_indexes", "output_channels", "downsample_channels", "mlp_dim",
                "mlp_ratio", "scale"):  # fmt: skip
        sam.get(key)  # the tensors show it
    width, heads = sam.integer("hidden_size"), sam.integer("num_attention_heads")
    if width % heads:
        raise sam.error("hidden_size", f"{width} is not a multiple of {heads} heads")
    return {
        "vision.sam.block_count": sam.layers(),
        "vision.sam.embedding_length": width,
        "vision.sam.head_count": heads,
        "vision.window_size": sam.integer("window_size"),
    }


def _towers(config: Config) -> tuple[Config, Config, int]:
    """Return the settings of SAM's encoder and of the one behind it, and the size of images."""
    vision = config.section("vision_config")
    if "width" not in vision:
        sam = vision.section("sam_config").with_defaults(_SAM_DEFAULTS)
        encoder = vision.section("encoder_config").with_defaults(_ENCODER_DEFAULTS)
        return sam, encoder, sam.integer("image_size")
    vision, sam = _deepseek_towers(config)
    encoder = vision.section("width").section("qwen2-0-5b").renamed({"dim": "hidden_size"})
    return sam, encoder.with_defaults(_ENCODER_DEFAULTS), vision.integer("image_size", 1024)


def _deepseek_towers(config: Config) -> tuple[Config, Config]:
    """Return DeepSeek's settings of the vision encoder, and those of SAM's encoder in it."""
    vision = config.section("vision_config")
    for key in ("mlp_ratio", "model_name", "model_type"):
        vision.get(key)  # none says more than the widths
    sam = vision.section("width").section("sam_vit_b").renamed(_SHORT)
    return vision, sam.with_defaults(_SAM_DEFAULTS)


def _text(config: Config) -> Config:
    """Return the settings of the text, which DeepSeek's config.json has twice."""
    if "language_config" not in config:
        return config.section("text_config")
    config.require("tile_tag", ("2D",), "2D")
    config.require("global_view_pos", ("head",), "head")
    config.get("candidate_resolutions")  # the vision encoder's size
    projector = config.section("projector_config")
    projector.require("projector_type", ("linear",), "linear")
    for key in ("input_dim", "n_embed", "model_type"):
        projector.get(key)  # the tensors show it
    text = config.section("language_config")
    for key in text.values:
        config.get(key)
    return text


def image_settings(processor: Config) -> Parameters:
    """Return the keys that preprocessor_config.json states: the sizes and numbers of tiles."""
    keys: Parameters = {}
    if "tile_size" in processor:
        keys["vision.preproc_image_size"] = processor.integer("tile_size", maximum=4096)
    for ours, theirs in (("min", "min_patches"), ("max", "max_patches")):
        if theirs in processor:
            keys[f"vision.preproc_{ours}_tiles"] = processor.integer(theirs, maximum=64)
    return keys


def with_template(checkpoint: Checkpoint) -> Mapping[str, object]:
    """Return the template of conversations, if the checkpoint has none."""
    return {} if has_template(checkpoint) else {"tokenizer.chat_template": _TEMPLATE}


_STEPS = ImageSteps(
    filter=Filter.BICUBIC,
    normalization=HALF,
    is_square=True,
    others={"crop_to_patches": (True,), "background_color": (127,)},
    processor={
        "downsample_ratio": (4,),
        # Of DeepSeek's own processor.
        "candidate_resolutions": ([1024, 1024],),
        "patch_size": (16,),
        "image_mean": ([*HALF.mean],),
        "image_std": ([*HALF.std],),
        "normalize": (True,),
        "add_special_token": (False,),
        "mask_prompt": (False,),
        "ignore_id": (-100,),
        "sft_format": ("deepseek",),
    },
)
DEEPSEEK_OCR2 = Family(
    architecture="deepseek2-ocr",
    checkpoints=("DeepseekOcr2ForConditionalGeneration", "DeepseekOCR2ForCausalLM"),
    names={**_TEXT_NAMES, **_SAM_NAMES, **_QUERY_NAMES},
    parameters=parameters,
    stacks=STACKS,
    splits=_SPLITS,
    optional=OF_SOME_LAYERS,
    prefixes=(*_PREFIXES, ("model.qwen2_model.model.model.", "queries.")),
    image_settings=image_settings,
    image_steps=_STEPS,
    checkpoint_keys=with_template,
    defaults={"max_position_embeddings": 2048},
)
DEEPSEEK_OCR = replace(
    DEEPSEEK_OCR2,
    checkpoints=("DeepseekOCRForCausalLM",),
    names={**_TEXT_NAMES, **_SAM_NAMES, **_CLIP_NAMES},
    parameters=clip_parameters,
    splits={**_SPLITS, **_CLIP_SPLITS},
    # CLIP's own patches and last norm, which are not used.
    ignored=frozenset(
        f"{_CLIP}{name}"
        for name in (
            "embeddings.patch_embedding.weight",
            "embeddings.position_ids",
            "post_layernorm.weight",
            "post_layernorm.bias",
        )
    ),
)
