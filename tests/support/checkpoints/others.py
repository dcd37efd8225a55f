"""Checkpoints for comparisons with llama.cpp, and of models that rank."""

from __future__ import annotations

import copy
from dataclasses import replace

import transformers
from support.checkpoints import layer_norm, pictures, text
from support.checkpoints.pictures import VL_EXPERTS, qwen3vl
from support.checkpoints.recipe import TEXT, YARN, Recipe
from support.checkpoints.text import gemma3, gptoss, llama4

# As above, but with what llama.cpp fixes as published models have it. Its YaRN rounds the
# dimensions between which it blends, gpt-oss's does not: here they are whole, but for a hundredth.
# It does not rotate Qwen3-VL's pairs beyond the sections of rows and columns: here there are none.
FOR_LLAMA_CPP: dict[str, Recipe] = {
    "gemma3_usual": gemma3(query_pre_attn_scalar=32),
    "gptoss_usual": gptoss(
        swiglu_limit=7.0,
        rope_parameters=YARN
        | {"original_max_position_embeddings": 403, "rope_theta": 66_000.0, "truncate": False},
    ),
    "qwen3vl_usual": qwen3vl(
        "Qwen3VLForConditionalGeneration", transformers.Qwen3VLConfig, sections=[6, 5, 5]
    ),
    "qwen3vlmoe_usual": qwen3vl(
        "Qwen3VLMoeForConditionalGeneration",
        transformers.Qwen3VLMoeConfig,
        sections=[6, 5, 5],
        **VL_EXPERTS,
    ),
    **layer_norm.FOR_LLAMA_CPP,
    "llama4_usual": llama4(attention_chunk_size=8192, floor_scale=8192, attn_scale=0.1),
}


def _deepseek_ocr(name: str) -> Recipe:
    """As published: twelve layers of SAM's, pictures of 1024 pixels, as many heads of keys."""
    recipe = pictures.RECIPES[name]
    values, published = copy.deepcopy((recipe.values, recipe.published))
    values["text_config"]["num_key_value_heads"] = 4
    values["vision_config"]["encoder_config"]["rms_norm_eps"] = 1e-6
    values["vision_config"]["sam_config"] |= {
        "hidden_size": 16, "num_hidden_layers": 12, "num_attention_heads": 1, "image_size": 1024,
        "patch_size": 16, "global_attn_indexes": [2, 5, 8, 11],
    }  # fmt: skip
    if published:
        published["language_config"]["num_key_value_heads"] = 4
        published["vision_config"]["image_size"] = 1024
        published["vision_config"]["width"]["sam_vit_b"] |= {
            "global_attn_indexes": [2, 5, 8, 11], "heads": 1, "layers": 12, "width": 16,
        }  # fmt: skip
    return replace(recipe, values=values, published=published, processor={})


FOR_LLAMA_CPP |= {
    f"{name}_usual": _deepseek_ocr(name) for name in ("deepseek_ocr", "deepseek_ocr2")
}

_RANKER = text.RECIPES["bert"].values | {"num_labels": 1}

_XLM_ROBERTA = _RANKER | {"pad_token_id": 1, "type_vocab_size": 1, "max_position_embeddings": 130}

_YES_NO = {"id2label": {0: "yes", 1: "no"}, "label2id": {"yes": 0, "no": 1}}

# Models with a head that scores a query and a document.
RANKERS: dict[str, Recipe] = {
    "bert_ranker": Recipe(
        "BertForSequenceClassification", transformers.BertConfig, _RANKER, "wordpiece_pair"
    ),
    "xlm_roberta_ranker": Recipe(
        "XLMRobertaForSequenceClassification",
        transformers.XLMRobertaConfig,
        _XLM_ROBERTA,
        "unigram",
    ),
    "xlm_roberta": Recipe(
        "XLMRobertaModel", transformers.XLMRobertaConfig, _XLM_ROBERTA, "unigram"
    ),
    "qwen3_ranker": Recipe(
        "Qwen3ForSequenceClassification",
        transformers.Qwen3Config,
        TEXT | _YES_NO | {"pad_token_id": 0, "sliding_window": None},
        "qwen2",
    ),
}
