"""Checkpoints of models that see."""

from __future__ import annotations

from typing import Any

import transformers
from support.checkpoints.deepseek_ocr import RENAMES, DeepseekOcrForCausalLM
from support.checkpoints.recipe import LLAMA3, SEED, TEXT, Recipe
from support.checkpoints.state_space import nemotron
from support.checkpoints.text import (
    GEMMA4_SMALL,
    GEMMA4_TEXT,
    GEMMA_TEXT,
    LFM2,
    QWEN35,
    QWEN35_MOE,
    llama4,
)

_SIGLIP = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 112,
    "patch_size": 14,
    "layer_norm_eps": 2e-2,
    "vision_use_head": False,
}

GEMMA4_TOWER = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "patch_size": 4,
    "pooling_kernel_size": 3,
    "position_embedding_size": 224,
    "rms_norm_eps": 2e-2,
}

_GEMMA4_EMBEDDER = {
    "patch_size": 4,
    "pooling_kernel_size": 3,
    "mm_embed_dim": 96,
    "mm_posemb_size": 72,
    "output_proj_dims": 96,
    "rms_norm_eps": 2e-2,
}


def _seeing4(
    architecture: str,
    config: type[transformers.PreTrainedConfig],
    vision: dict[str, Any],
    **changes: Any,
) -> Recipe:
    """An image's tokens see one another in the layers with a window, but not in small models."""
    text = GEMMA4_TEXT | {"pad_token_id": 0, "use_bidirectional_attention": "vision"} | changes
    marks = {"boi_token_id": 6, "eoi_token_id": 7, "image_token_id": 8, "video_token_id": 500}
    values = {"text_config": text, "vision_config": vision, "audio_config": None, **marks}
    return Recipe(
        architecture,
        config,
        values,
        "gemma4_image",
        approximate=True,
        processor={"patch_size": 4, "pooling_kernel_size": 3, "max_soft_tokens": 70},
    )


_SMALL_PICTURES = {
    "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280},
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
}

LFM2_PICTURES = {
    "encoder_patch_size": 8,
    "tile_size": 64,
    "min_image_tokens": 4,
    "max_image_tokens": 20,
    "max_tiles": 4,
}

_IMAGE_TOKENS = {
    "image_token_id": 7,
    "vision_start_token_id": 6,
    "vision_end_token_id": 8,
    "video_token_id": 500,
}

_TOWER = {
    "depth": 4,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_heads": 4,
    "out_hidden_size": 128,
    "num_position_embeddings": 36,
}

_DEEPSEEK_OCR_TEXT = {name: value for name, value in TEXT.items() if name != "head_dim"} | {
    "max_position_embeddings": 2048,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 96,
    "n_shared_experts": 2,
    "routed_scaling_factor": 1.5,
}
# As published: 64 places in a row of the whole, 48 in one of a tile; 256 and 144 rows.
_DEEPSEEK_OCR = {
    "text_config": _DEEPSEEK_OCR_TEXT | {"mlp_layer_types": ["dense", "sparse", "sparse"]},
    "vision_config": {
        "sam_config": {
            "hidden_size": 32,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "image_size": 192,
            "patch_size": 3,
            "mlp_ratio": 2.0,
            "global_attn_indexes": [1],
            "output_channels": 24,
            "downsample_channels": [40, 64],
        },
        "encoder_config": {
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "rms_norm_eps": 2e-2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
            "vocab_size": 1,
        },
    },
    "image_token_id": 7,
}
_PUBLISHED_DEEPSEEK_OCR: dict[str, Any] = {
    "architectures": ["DeepseekOCRForCausalLM"],
    "model_type": "deepseek_vl_v2",
    "candidate_resolutions": [[192, 192]],
    "global_view_pos": "head",
    "tile_tag": "2D",
    "language_config": _DEEPSEEK_OCR_TEXT
    | {
        "architectures": ["DeepseekV2ForCausalLM"],
        "first_k_dense_replace": 1,
        "kv_lora_rank": None,
        "q_lora_rank": None,
        "qk_nope_head_dim": 0,
        "qk_rope_head_dim": 0,
        "v_head_dim": 0,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "greedy",
        "use_mla": False,
        "lm_head": True,
        "rm_head": False,
    },
    "projector_config": {
        "input_dim": 128,
        "model_type": "mlp_projector",
        "n_embed": 128,
        "projector_type": "linear",
    },
    "vision_config": {
        "image_size": 192,
        "mlp_ratio": 3.7362,
        "model_name": "deeplip_b_l",
        "model_type": "vision",
        "width": {
            "clip-l-14-224": {
                "heads": 4, "image_size": 224, "layers": 2, "patch_size": 14, "width": 64,
            },
            "sam_vit_b": {
                "downsample_channels": [40, 64], "global_attn_indexes": [1], "heads": 2,
                "layers": 3, "width": 32,
            },
        },
    },
}  # fmt: skip

VL_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 96}


def qwen3vl(
    architecture: str, config: type[transformers.PreTrainedConfig], **changes: Any
) -> Recipe:
    """The second and third number of a position end before the first, as in published models."""
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_interleaved": True}
    rope["mrope_section"] = changes.pop("sections", [8, 4, 4])
    seed = changes.pop("seed", SEED)
    values = {
        "text_config": TEXT | {"num_hidden_layers": 4, "rope_parameters": rope} | changes,
        "vision_config": _TOWER | {"deepstack_visual_indexes": [0, 2]},
        **_IMAGE_TOKENS,
    }
    return Recipe(
        architecture,
        config,
        values,
        "qwen2_image",
        approximate_tower=True,
        seed=seed,
        processor=_SMALL_PICTURES,
    )


def _seeing35(
    architecture: str, config: type[transformers.PreTrainedConfig], text: Recipe
) -> Recipe:
    values = {"text_config": text.values, "vision_config": _TOWER, **_IMAGE_TOKENS}
    return Recipe(
        architecture,
        config,
        values,
        "qwen35_image",
        approximate_tower=True,
        processor=_SMALL_PICTURES,
    )


def _internvl(text: str, **changes: Any) -> Recipe:
    """Tiles of 56 pixels, so that small pictures have several."""
    values = {
        "text_config": TEXT | {"model_type": text, "num_hidden_layers": 2},
        "vision_config": {
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": [56, 56],
            "patch_size": [14, 14],
            "layer_norm_eps": 2e-2,
        }
        | changes,
        "image_token_id": 7,
        "tie_word_embeddings": False,
    }
    return Recipe(
        "InternVLForConditionalGeneration",
        transformers.InternVLConfig,
        values,
        "internvl_image",
        processor={
            "size": {"height": 56, "width": 56},
            "max_patches": 6,
            "image_mean": [0.485, 0.456, 0.406],
            "image_std": [0.229, 0.224, 0.225],
        },
    )


RECIPES: dict[str, Recipe] = {
    "paddleocr": Recipe(
        "PaddleOCRVLForConditionalGeneration",
        transformers.PaddleOCRVLConfig,
        {
            "text_config": TEXT
            | {
                "num_hidden_layers": 2,
                "pad_token_id": 0,
                "rope_parameters": {"rope_type": "default", "mrope_section": [4, 6, 6]},
            },
            "vision_config": {
                "hidden_size": 64,
                "intermediate_size": 96,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "image_size": 90,  # a grid of six
                "patch_size": 14,
                "layer_norm_eps": 2e-2,
            },
            **_IMAGE_TOKENS,
            "tie_word_embeddings": False,
        },
        "paddleocr_image",
        approximate_tower=True,
        processor=_SMALL_PICTURES | {"temporal_patch_size": 1},
    ),
    "glm_ocr": Recipe(
        "GlmOcrForConditionalGeneration",
        transformers.GlmOcrConfig,
        {
            "text_config": TEXT
            | {
                "num_hidden_layers": 2,
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 1e4,
                    "mrope_section": [4, 6, 6],
                },
            },
            "vision_config": {
                "depth": 2,
                "hidden_size": 64,
                "intermediate_size": 96,
                "num_heads": 4,
                "out_hidden_size": 128,
                "patch_size": 14,
                "rms_norm_eps": 2e-2,
            },
            "image_token_id": 7,
            "video_token_id": 500,
            "image_start_token_id": 6,
            "image_end_token_id": 8,
        },
        "glm4_image",
        processor={"size": {"shortest_edge": 2 * 56 * 56, "longest_edge": 2 * 28 * 28 * 1280}},
    ),
    "internvl": _internvl("qwen3", attention_bias=True),
    "internvl_large": _internvl("qwen2", norm_type="rms_norm", use_qk_norm=True),
    "qwen35_seeing": _seeing35(
        "Qwen3_5ForConditionalGeneration", transformers.Qwen3_5Config, QWEN35
    ),
    "qwen35moe_seeing": _seeing35(
        "Qwen3_5MoeForConditionalGeneration", transformers.Qwen3_5MoeConfig, QWEN35_MOE
    ),
    "llava": Recipe(
        "LlavaForConditionalGeneration",
        transformers.LlavaConfig,
        {
            "text_config": TEXT | {"model_type": "llama", "num_hidden_layers": 2},
            "vision_config": {
                "model_type": "clip_vision_model",
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_hidden_layers": 3,
                "num_attention_heads": 4,
                "image_size": 112,
                "patch_size": 14,
                "projection_dim": 32,
                "layer_norm_eps": 1e-3,
            },
            "image_token_index": 6,
        },
        "llama3_image",
    ),
    "smolvlm": Recipe(
        "SmolVLMForConditionalGeneration",
        transformers.SmolVLMConfig,
        {
            "text_config": TEXT | {"model_type": "llama", "num_hidden_layers": 2},
            "vision_config": {
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "image_size": 50,  # the last pixels are less than a patch, as in SmolVLM
                "patch_size": 8,
                "layer_norm_eps": 2e-2,
            },
            "scale_factor": 3,
            "image_token_id": 7,
        },
        "smolvlm_image",
        approximate_tower=True,
        processor={"size": {"longest_edge": 150}, "max_image_size": {"longest_edge": 50}},
    ),
    "lfm2_vl": Recipe(
        "Lfm2VlForConditionalGeneration",
        transformers.Lfm2VlConfig,
        {
            "text_config": LFM2.values | {"model_type": "lfm2"},
            "vision_config": {
                "model_type": "siglip2_vision_model",
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "patch_size": 8,
                "num_patches": 36,  # fewer than those of a tile, more than those of small images
                "layer_norm_eps": 2e-2,
                "vision_use_head": False,
            },
            "projector_hidden_size": 96,
            "image_token_id": 7,
        },
        "lfm2_image",
        approximate_tower=True,
        processor=LFM2_PICTURES,
    ),
    "minicpmv": Recipe(
        "MiniCPMV4_6ForConditionalGeneration",
        transformers.MiniCPMV4_6Config,
        {
            "text_config": QWEN35.values | {"model_type": "qwen3_5_text"},
            "vision_config": {
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_hidden_layers": 3,
                "num_attention_heads": 4,
                "image_size": 77,  # a grid of eleven
                "patch_size": 7,
                "layer_norm_eps": 2e-2,
            },
            "insert_layer_id": 1,
            "image_token_id": 7,
            "tie_word_embeddings": False,
        },
        "minicpmv_image",
        approximate_tower=True,
        processor={"scale_resolution": 84, "max_slice_nums": 4, "patch_size": 7},
    ),
    "nemotron_omni": Recipe(
        "NemotronH_Omni_Reasoning_V3",
        transformers.NemotronH_Omni_Reasoning_V3_Config,
        {
            "text_config": nemotron("M*-").values | {"model_type": "nemotron_h"},
            "vision_config": {
                "model_type": "radio",
                "hidden_size": 64,
                "mlp_ratio": 2.0,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "patch_size": 8,
                "max_img_size": 96,
                "layer_norm_eps": 2e-2,
                "video_temporal_patch_size": 2,
            },
            "audio_config": None,
            "vision_hidden_size": 64,
            "projector_hidden_size": 96,
            "image_token_id": 7,
        },
        "nemotron_image",
        processor={"min_num_patches": 30, "max_num_patches": 200},
    ),
    "deepseek_ocr": Recipe(
        "DeepseekOcr2ForConditionalGeneration",
        transformers.DeepseekOcr2Config,
        _DEEPSEEK_OCR,
        "deepseek_ocr_image",
        published=_PUBLISHED_DEEPSEEK_OCR,
        renames=RENAMES,
        model=DeepseekOcrForCausalLM,
        pictures_context=2048,
    ),
    "deepseek_ocr2": Recipe(
        "DeepseekOcr2ForConditionalGeneration",
        transformers.DeepseekOcr2Config,
        _DEEPSEEK_OCR,
        "deepseek_ocr_image",
        renames=(
            (r"^model\.language_model\.", "model."),
            (r"^model\.multi_modal_projector\.", "model.projector.layers."),
            (r"view_separator$", "view_seperator"),
        ),
        processor={"size": {"height": 192, "width": 192}, "tile_size": 144, "max_patches": 4},
        pictures_context=2048,
    ),
    "mistral3_vision": Recipe(
        "Mistral3ForConditionalGeneration",
        transformers.Mistral3Config,
        {
            "text_config": TEXT
            | {"model_type": "mistral", "head_dim": 48, "rope_theta": 1e9, "sliding_window": None},
            "vision_config": {
                "model_type": "pixtral",
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "head_dim": 16,
                "image_size": 140,
                "patch_size": 14,
                "hidden_act": "silu",
            },
            "image_token_index": 7,
            "vision_feature_layer": -1,
            "spatial_merge_size": 2,
        },
        "llama3_image",
    ),
    "llama4_vision": Recipe(
        "Llama4ForConditionalGeneration",
        transformers.Llama4Config,
        {
            "text_config": llama4().values,
            "vision_config": {
                "hidden_size": 64,
                "intermediate_size": 256,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "image_size": 112,
                "patch_size": 14,
                "vision_output_dim": 96,
                "projector_input_dim": 96,
                "projector_output_dim": 96,
                "pixel_shuffle_ratio": 0.5,
                "norm_eps": 1e-3,
            },
            "image_token_index": 7,
        },
        "llama4_image",
    ),
    "mllama": Recipe(
        "MllamaForConditionalGeneration",
        transformers.MllamaConfig,
        {
            "text_config": {name: value for name, value in TEXT.items() if name != "head_dim"}
            | {
                "num_hidden_layers": 4,
                "cross_attention_layers": [1, 3],
                "rope_parameters": LLAMA3 | {"rope_theta": 500_000.0},
                "pad_token_id": 0,
            },
            "vision_config": {
                "hidden_size": 64,
                "attention_heads": 4,
                "intermediate_size": 128,
                "num_hidden_layers": 4,
                "num_global_layers": 2,
                "image_size": 112,
                "patch_size": 14,
                "max_num_tiles": 4,
                "intermediate_layers_indices": [1, 3],
                "vision_output_dim": 192,
                "norm_eps": 1e-3,
            },
            "image_token_index": 10,
        },
        "llama3_image",
    ),
    "qwen25vl": Recipe(
        "Qwen2_5_VLForConditionalGeneration",
        transformers.Qwen2_5_VLConfig,
        {
            "text_config": {name: value for name, value in TEXT.items() if name != "head_dim"}
            | {
                "model_type": "qwen2_5_vl_text",
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 1e6,
                    "mrope_section": [4, 6, 6],
                },
            },
            "vision_config": {
                "depth": 4,
                "hidden_size": 64,
                "intermediate_size": 96,
                "num_heads": 4,
                "out_hidden_size": 128,
                "patch_size": 14,
                "window_size": 112,
                "fullatt_block_indexes": [1, 3],
                "hidden_act": "silu",
            },
            "image_token_id": 7,
            "vision_start_token_id": 6,
            "vision_end_token_id": 8,
            "video_token_id": 500,
        },
        "qwen2_image",
    ),
    "qwen3vl": qwen3vl("Qwen3VLForConditionalGeneration", transformers.Qwen3VLConfig),
    "qwen3vlmoe": qwen3vl(
        "Qwen3VLMoeForConditionalGeneration",
        transformers.Qwen3VLMoeConfig,
        seed=2,
        **VL_EXPERTS,
    ),
    "gemma4_seeing": _seeing4(
        "Gemma4ForConditionalGeneration",
        transformers.Gemma4Config,
        GEMMA4_TOWER | {"use_clipped_linears": True, "standardize": True},
    ),
    "gemma4_small_seeing": _seeing4(
        "Gemma4ForConditionalGeneration",
        transformers.Gemma4Config,
        GEMMA4_TOWER,
        **GEMMA4_SMALL,
        use_bidirectional_attention=None,
    ),
    "gemma4_unified_seeing": _seeing4(
        "Gemma4UnifiedForConditionalGeneration",
        transformers.Gemma4UnifiedConfig,
        _GEMMA4_EMBEDDER,
    ),
    "gemma3_vision": Recipe(
        "Gemma3ForConditionalGeneration",
        transformers.Gemma3Config,
        {
            "text_config": GEMMA_TEXT | {"num_hidden_layers": 6},
            "vision_config": _SIGLIP,
            "mm_tokens_per_image": 16,
            "image_token_index": 8,
            "boi_token_index": 6,
            "eoi_token_index": 7,
        },
        "gemma",
        approximate=True,
    ),
}
