"""Checkpoints written by hand: a few numbers in the right files, no torch and no training."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

HIDDEN, HEADS, KV_HEADS, HEAD, INNER, ROWS = 32, 2, 1, 16, 64, 12

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": ROWS,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
}

FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)

TOKENIZER: dict[str, Any] = {
    "version": "1.0",
    "added_tokens": [
        {"id": 8, "content": "<|begin|>", "special": True, **FLAGS},
        {"id": 9, "content": "<|end|>", "special": True, **FLAGS},
        {"id": 10, "content": "<tool>", "special": False, **FLAGS},
    ],
    "pre_tokenizer": {
        "type": "Sequence",
        "pretokenizers": [
            {
                "type": "Split",
                "pattern": {
                    "Regex": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
                    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
                },
                "behavior": "Isolated",
                "invert": False,
            },
            {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "trim_offsets": True,
                "use_regex": False,
            },
        ],
    },
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<|begin|>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|begin|>": {"id": "<|begin|>", "ids": [8], "tokens": ["<|begin|>"]}},
    },
    "decoder": {
        "type": "ByteLevel",
        "add_prefix_space": True,
        "trim_offsets": True,
        "use_regex": True,
    },
    "model": {
        "type": "BPE",
        "vocab": {"a": 0, "b": 1, "c": 2, "d": 3, "Ġ": 4, "ab": 5, "cd": 6, "abcd": 7},
        "merges": [["a", "b"], ["c", "d"], ["ab", "cd"]],
    },
}

Arrays = dict[str, npt.NDArray[Any]]


def weights(config: Mapping[str, Any] = CONFIG) -> Arrays:
    """Return random weights for a Llama of one layer."""
    random = np.random.default_rng(5)
    heads, kv_heads, head = HEADS, KV_HEADS, HEAD
    shapes = {
        "model.embed_tokens.weight": (config["vocab_size"], HIDDEN),
        "model.layers.0.input_layernorm.weight": (HIDDEN,),
        "model.layers.0.self_attn.q_proj.weight": (heads * head, HIDDEN),
        "model.layers.0.self_attn.k_proj.weight": (kv_heads * head, HIDDEN),
        "model.layers.0.self_attn.v_proj.weight": (kv_heads * head, HIDDEN),
        "model.layers.0.self_attn.o_proj.weight": (HIDDEN, heads * head),
        "model.layers.0.post_attention_layernorm.weight": (HIDDEN,),
        "model.layers.0.mlp.gate_proj.weight": (INNER, HIDDEN),
        "model.layers.0.mlp.up_proj.weight": (INNER, HIDDEN),
        "model.layers.0.mlp.down_proj.weight": (HIDDEN, INNER),
        "model.norm.weight": (HIDDEN,),
        "lm_head.weight": (config["vocab_size"], HIDDEN),
    }
    return {name: random.standard_normal(s).astype(np.float32) for name, s in shapes.items()}


def write(
    folder: Path,
    *,
    config: Mapping[str, Any] = CONFIG,
    tensors: Arrays | None = None,
    **files: Mapping[str, Any],
) -> Path:
    """Write a checkpoint; `files` are further JSON files, their names without the ending."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = {"config": config, "tokenizer": TOKENIZER, **files}
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    save_file(weights(config) if tensors is None else tensors, folder / "model.safetensors")
    return folder
