"""config.json of DeepSeek-OCR 2 as DeepSeek wrote it, which leaves most to its code."""

from __future__ import annotations

from typing import Any

import pytest

from tampu.convert.config import Config
from tampu.convert.families.deepseek_ocr import DEEPSEEK_OCR2
from tampu.convert.keys import check_config
from tampu.errors import UnsupportedModelError

_TEXT: dict[str, Any] = {
    "bos_token_id": 0,
    "eos_token_id": 1,
    "first_k_dense_replace": 1,
    "hidden_size": 1280,
    "intermediate_size": 6848,
    "kv_lora_rank": None,
    "lm_head": True,
    "max_position_embeddings": 8192,
    "moe_intermediate_size": 896,
    "n_group": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_attention_heads": 10,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 12,
    "num_key_value_heads": 10,
    "q_lora_rank": None,
    "qk_nope_head_dim": 0,
    "qk_rope_head_dim": 0,
    "rm_head": False,
    "topk_group": 1,
    "topk_method": "greedy",
    "use_mla": False,
    "v_head_dim": 0,
    "vocab_size": 129_280,
}
_SAM = {"downsample_channels": [512, 1024], "global_attn_indexes": [2, 5, 8, 11], "heads": 12,
        "layers": 12, "width": 768}  # fmt: skip


def published(**changes: Any) -> Config:
    return Config(
        {
            "architectures": ["DeepseekOCR2ForCausalLM"],
            "candidate_resolutions": [[1024, 1024]],
            "global_view_pos": "head",
            "language_config": _TEXT,
            "model_type": "deepseek_vl_v2",
            "projector_config": {
                "input_dim": 896,
                "model_type": "mlp_projector",
                "n_embed": 1280,
                "projector_type": "linear",
            },
            "tile_tag": "2D",
            "torch_dtype": "bfloat16",
            "vision_config": {
                "image_size": 1024,
                "mlp_ratio": 3.7362,
                "model_name": "deepencoderv2",
                "model_type": "vision",
                "width": {"qwen2-0-5b": {"dim": 896}, "sam_vit_b": _SAM},
            },
            **_TEXT,
            **changes,
        }
    )


def test_the_sizes_that_only_its_code_states() -> None:
    config = published()
    keys = DEEPSEEK_OCR2.parameters(config)
    check_config(config, is_allowed=False)
    assert (
        keys
        | {
            "block_count": 12,
            "attention.head_count": 10,
            "attention.key_length": 128,
            "leading_dense_block_count": 1,
            "expert_used_count": 6,
            "expert_shared_count": 2,
            "expert_weights_norm": False,
            "vision.block_count": 24,
            "vision.embedding_length": 896,
            "vision.feed_forward_length": 4864,
            "vision.attention.head_count": 14,
            "vision.attention.head_count_kv": 2,
            "vision.image_size": 1024,
            "vision.patch_size": 16,
            "vision.preproc_image_size": 768,
            "vision.sam.block_count": 12,
            "vision.sam.embedding_length": 768,
            "vision.sam.head_count": 12,
            "vision.window_size": 14,
        }
        == keys
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"language_config": _TEXT | {"use_mla": True}}, "use_mla is True"),
        ({"language_config": _TEXT | {"kv_lora_rank": 512}}, "kv_lora_rank is 512"),
        ({"language_config": _TEXT | {"topk_method": "noaux_tc"}}, "topk_method is 'noaux_tc'"),
        ({"projector_config": {"projector_type": "mlp_gelu"}}, "projector_type is 'mlp_gelu'"),
        ({"tile_tag": "1D"}, "tile_tag is '1D'"),
        ({"something": 1}, "something"),
    ],
)
def test_what_the_encoder_does_not_do_is_refused(changes: dict[str, Any], message: str) -> None:
    config = published(**changes)
    with pytest.raises(UnsupportedModelError, match=message):  # noqa: PT012
        DEEPSEEK_OCR2.parameters(config)
        check_config(config, is_allowed=False)
