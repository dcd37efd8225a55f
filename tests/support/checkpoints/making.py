"""The making of a checkpoint from its recipe."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from support.checkpoints.published import REFERENCE, publish
from support.checkpoints.recipe import Recipe
from support.checkpoints.weights import draw_weights
from support.tiny_tokenizers import (
    write_byte_level,
    write_byte_level_of_encoders,
    write_gemma,
    write_sentencepiece,
    write_unigram,
    write_wordpiece,
)
from transformers import PreTrainedModel

_TOKENIZERS: dict[str, Callable[[Path], None]] = {
    "unigram": write_unigram,
    "wordpiece_pair": lambda folder: write_wordpiece(folder, has_pairs=True),
    "wordpiece": write_wordpiece,
    "modern_bert": write_byte_level_of_encoders,
    "roberta": lambda folder: write_byte_level_of_encoders(folder, is_roberta=True),
    "llama3_image": lambda folder: write_byte_level(folder, "llama3", "llama3"),
    "paddleocr_image": lambda folder: write_byte_level(folder, "llama3", "paddleocr"),
    "glm4_image": lambda folder: write_byte_level(folder, "llama3", "glm4"),
    "internvl_image": lambda folder: write_byte_level(folder, "qwen2", "internvl"),
    "llama3_audio": lambda folder: write_byte_level(folder, "llama3", "voxtral"),
    "smolvlm_image": lambda folder: write_byte_level(folder, "llama3", "smolvlm"),
    "lfm2_image": lambda folder: write_byte_level(folder, "llama3", "lfm2"),
    "minicpmv_image": lambda folder: write_byte_level(folder, "qwen35", "minicpmv"),
    "nemotron_image": lambda folder: write_byte_level(folder, "llama3", "nemotron"),
    "deepseek_ocr_image": lambda folder: write_byte_level(folder, "llama3", "deepseek_ocr"),
    "llama4_image": lambda folder: write_byte_level(folder, "llama3", "llama4"),
    "qwen2_audio": lambda folder: write_byte_level(folder, "qwen2", "qwen2_audio"),
    "qwen25_omni": lambda folder: write_byte_level(folder, "qwen2", "qwen25_omni"),
    "qwen3_omni": lambda folder: write_byte_level(folder, "qwen2", "qwen3_omni"),
    "qwen2_image": lambda folder: write_byte_level(folder, "qwen2", "qwen2"),
    "llama3": lambda folder: write_byte_level(folder, "llama3"),
    "qwen2": lambda folder: write_byte_level(folder, "qwen2"),
    "qwen35": lambda folder: write_byte_level(folder, "qwen35"),
    "qwen35_image": lambda folder: write_byte_level(folder, "qwen35", "qwen2"),
    "sentencepiece": write_sentencepiece,
    "gemma": write_gemma,
    "gemma4_image": lambda folder: write_gemma(folder, has_new_marks=True),
    "embedding_gemma2": lambda folder: write_gemma(
        folder, has_new_marks=True, hears=True, embeds=True
    ),
    "gemma4_audio": lambda folder: write_gemma(folder, has_new_marks=True, hears=True),
}
_OF_ENCODERS = ("wordpiece", "wordpiece_pair", "unigram", "modern_bert", "roberta")


def make(recipe: Recipe, folder: Path) -> None:
    """Write a checkpoint to an empty folder: weights, config.json and the files of a tokenizer."""
    config = recipe.config(**recipe.values)
    config._attn_implementation = "eager"
    model = recipe.model_class(config).float().eval()
    draw_weights(model, recipe.seed)
    model.tie_weights()
    if recipe.published:
        _publish(recipe, model, folder)
    else:
        model.save_pretrained(folder)
    if recipe.layout:
        publish(folder, recipe.layout)
    _TOKENIZERS[recipe.tokenizer](folder)
    if recipe.dense:
        _write_modules(folder, config.hidden_size, recipe.dense)
    if recipe.processor:
        (folder / "preprocessor_config.json").write_text(json.dumps(recipe.processor))
    if recipe.tokenizer not in _OF_ENCODERS:  # it generates nothing
        generation = {"bos_token_id": 1, "eos_token_id": [2, 5]}
        (folder / "generation_config.json").write_text(json.dumps(generation))


def _publish(recipe: Recipe, model: PreTrainedModel, folder: Path) -> None:
    """Write a checkpoint as its publisher does, and transformers' in a folder inside."""
    model.save_pretrained(folder / REFERENCE)
    tensors = load_file(folder / REFERENCE / "model.safetensors")
    renamed = {recipe.rename(name): values for name, values in tensors.items()}
    parts = sorted(name for name in renamed if "@" in name)  # of fused tensors
    for name in dict.fromkeys(part.partition("@")[0] for part in parts):
        renamed[name] = torch.cat(
            [renamed.pop(each) for each in parts if each.startswith(f"{name}@")]
        )
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(recipe.published))


def _write_modules(folder: Path, width: int, dense: Sequence[int]) -> None:
    """Write the modules of sentence-transformers: the mean, dense layers, and a length of 1."""
    kinds = ["Transformer", "Pooling", *["Dense"] * len(dense), "Normalize"]
    modules = [
        {
            "idx": index,
            "name": str(index),
            "path": f"{index}_{kind}" if index else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for index, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    for index, outputs in enumerate(dense, 2):
        part = folder / f"{index}_Dense"
        part.mkdir()
        generator = torch.Generator().manual_seed(index)
        weight = torch.randn((outputs, width), generator=generator) / width**0.5
        save_file({"linear.weight": weight.bfloat16().float()}, part / "model.safetensors")
        identity = "torch.nn.modules.linear.Identity"
        settings = {"in_features": width, "out_features": outputs, "bias": False,
                    "activation_function": identity}  # fmt: skip
        (part / "config.json").write_text(json.dumps(settings))
        width = outputs
