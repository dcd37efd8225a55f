"""The making of a checkpoint from its recipe."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import transformers
from support.checkpoints.published import publish
from support.checkpoints.recipe import Recipe
from support.checkpoints.weights import draw_weights
from support.tiny_tokenizers import (
    write_byte_level,
    write_gemma,
    write_sentencepiece,
    write_unigram,
    write_wordpiece,
)

_TOKENIZERS: dict[str, Callable[[Path], None]] = {
    "unigram": write_unigram,
    "wordpiece_pair": lambda folder: write_wordpiece(folder, has_pairs=True),
    "wordpiece": write_wordpiece,
    "llama3_image": lambda folder: write_byte_level(folder, "llama3", "llama3"),
    "llama4_image": lambda folder: write_byte_level(folder, "llama3", "llama4"),
    "qwen2_image": lambda folder: write_byte_level(folder, "qwen2", "qwen2"),
    "llama3": lambda folder: write_byte_level(folder, "llama3"),
    "qwen2": lambda folder: write_byte_level(folder, "qwen2"),
    "qwen35": lambda folder: write_byte_level(folder, "qwen35"),
    "qwen35_image": lambda folder: write_byte_level(folder, "qwen35", "qwen2"),
    "sentencepiece": write_sentencepiece,
    "gemma": write_gemma,
    "gemma4_image": lambda folder: write_gemma(folder, has_new_marks=True),
}


def make(recipe: Recipe, folder: Path) -> None:
    """Write a checkpoint to an empty folder: weights, config.json and the files of a tokenizer."""
    config = recipe.config(**recipe.values)
    config._attn_implementation = "eager"
    model = getattr(transformers, recipe.architecture)(config).float().eval()
    draw_weights(model, recipe.seed)
    model.tie_weights()
    model.save_pretrained(folder)
    if recipe.published:
        publish(folder, recipe.published)
    _TOKENIZERS[recipe.tokenizer](folder)
    if recipe.processor:
        (folder / "preprocessor_config.json").write_text(json.dumps(recipe.processor))
    if recipe.tokenizer not in ("wordpiece", "wordpiece_pair", "unigram"):  # it generates nothing
        generation = {"bos_token_id": 1, "eos_token_id": [2, 5]}
        (folder / "generation_config.json").write_text(json.dumps(generation))
