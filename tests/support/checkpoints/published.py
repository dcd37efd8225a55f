"""Checkpoints as publishers save models that transformers lacks, made from its nearest model.

Such a model computes the same as the nearest one, under other names. That one stays in the folder
`reference`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

Tensors = dict[str, torch.Tensor]
REFERENCE = "reference"


def _in_order(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, heads: int) -> torch.Tensor:  # noqa: ARG001
    return torch.cat([q, k, v])


def _grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, heads: int) -> torch.Tensor:
    """For each head of keys: the queries that share it, the key, the value."""
    parts = [part.reshape(heads, -1, *part.shape[1:]) for part in (q, k, v)]
    return torch.cat(parts, 1).reshape(-1, *q.shape[1:])


@dataclass(frozen=True)
class Layout:
    """How a publisher names tensors and settings.

    Attributes:
        names: what to replace in the names of tensors, in this order.
        keys: in config.json: transformers' key -> the publisher's.
        dropped: transformers' keys that the publisher does not have.
        fused: the name in a layer of the fused queries, keys and values; empty: they are apart.
        joined: projections whose rows follow those of another.
        alibi_from: from this number of layers on, scores fall with the distance, and nothing is
            rotated; None: never.
        fuse: makes that tensor of the three, given the number of key heads.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    fused: str = ""
    joined: Mapping[str, str] = field(default_factory=dict)
    alibi_from: int | None = None
    fuse: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, int], torch.Tensor] = _in_order


_GPT2_KEYS = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
    "hidden_act": "activation_function",
}
LAYOUTS: Mapping[str, Layout] = {
    "InternLM2ForCausalLM": Layout(
        names={
            "embed_tokens": "tok_embeddings",
            "input_layernorm": "attention_norm",
            "post_attention_layernorm": "ffn_norm",
            "self_attn.o_proj": "attention.wo",
            "mlp.gate_proj": "feed_forward.w1",
            "mlp.up_proj": "feed_forward.w3",
            "mlp.down_proj": "feed_forward.w2",
            "lm_head": "output",
        },
        fused="attention.wqkv",
        fuse=_grouped,
    ),
    "XverseForCausalLM": Layout(),
    "BaichuanForCausalLM": Layout(
        keys={"max_position_embeddings": "model_max_length"},
        dropped=("num_key_value_heads", "head_dim", "attention_bias", "mlp_bias"),
        fused="self_attn.W_pack",
        alibi_from=40,
    ),
    "GPTRefactForCausalLM": Layout(
        names={
            "model.embed_tokens": "transformer.wte",
            "model.layers": "transformer.h",
            "model.norm": "transformer.ln_f",
            "input_layernorm": "ln_1",
            "post_attention_layernorm": "ln_2",
            "self_attn.q_proj": "attn.q",
            "self_attn.k_proj": "attn.kv",
            "self_attn.o_proj": "attn.c_proj",
            "mlp.gate_proj": "mlp.gate_up_proj",
            "mlp.down_proj": "mlp.c_proj",
        },
        keys=_GPT2_KEYS | {"rms_norm_eps": "layer_norm_epsilon"},
        dropped=("num_key_value_heads", "intermediate_size", "rope_parameters", "head_dim"),
        joined={"v_proj": "k_proj", "up_proj": "gate_proj"},
        alibi_from=0,
    ),
    "OrionForCausalLM": Layout(
        keys={"layer_norm_eps": "rms_norm_eps"},
        dropped=("use_parallel_residual", "use_qkv_bias", "qk_layernorm"),
    ),
    "CodeShellForCausalLM": Layout(
        names={
            "model.embed_tokens": "transformer.wte",
            "model.layers": "transformer.h",
            "model.norm": "transformer.ln_f",
            "input_layernorm": "ln_1",
            "post_attention_layernorm": "ln_2",
            "self_attn.o_proj": "attn.c_proj",
        },
        keys=_GPT2_KEYS
        | {"num_key_value_heads": "num_query_groups", "norm_epsilon": "layer_norm_epsilon"},
        dropped=("use_bias",),
        fused="attn.c_attn",
    ),
}


def publish(folder: Path, name: str) -> None:
    """Move the model in a folder to `reference`, and write it as its publisher would."""
    layout, kept = LAYOUTS[name], folder / REFERENCE
    kept.mkdir()
    for file in ("config.json", "model.safetensors"):
        (folder / file).rename(kept / file)
    config = json.loads((kept / "config.json").read_text())
    tensors = load_file(kept / "model.safetensors")
    if layout.fused:
        tensors = _fused(tensors, layout, config["num_key_value_heads"])
    for part, first in layout.joined.items():
        for each in [each for each in tensors if part in each]:
            before = each.replace(part, first)
            tensors[before] = torch.cat([tensors[before], tensors.pop(each)])
    for old, new in layout.names.items():
        tensors = {key.replace(old, new): value for key, value in tensors.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(published_config(config, name)))


def published_config(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return config.json as the publisher has it, from that of the nearest model."""
    layout = LAYOUTS[name]
    held = {key: value for key, value in config.items() if key not in layout.dropped}
    settings = {layout.keys.get(key, key): value for key, value in held.items()}
    kind = name.removesuffix("ForCausalLM").lower()
    return settings | {"architectures": [name], "model_type": kind}


def _fused(tensors: Tensors, layout: Layout, heads: int) -> Tensors:
    """Return the tensors, queries, keys and values of each layer in one."""
    made: Tensors = {}
    for name, tensor in tensors.items():
        if ".q_proj." in name:
            key, value = (tensors[name.replace(".q_", f".{part}_")] for part in "kv")
            name = re.sub(r"self_attn\.q_proj", layout.fused, name)
            made[name] = layout.fuse(tensor, key, value, heads)
        elif not re.search(r"\.[kv]_proj\.", name):
            made[name] = tensor
    return made


def use_alibi(model: PreTrainedModel, name: str) -> None:
    """Have a model of Llama's class compute what its published form does with the distance."""
    first = LAYOUTS[name].alibi_from
    if first is None or model.config.num_hidden_layers < first:
        return
    heads = model.config.num_attention_heads
    slopes = 2.0 ** (-8.0 * (torch.arange(heads) + 1) / heads)  # of a power of two (2108.12409)

    def add_distances(_: object, given: tuple[object, ...], named: dict[str, Any]) -> object:
        places = torch.arange(named["input_ids"].shape[1])
        distance = (places[None, :] - places[:, None]).float()
        mask = torch.where(distance > 0, -torch.inf, slopes[:, None, None] * distance)
        return given, named | {"attention_mask": mask[None]}

    def unrotated(_: object, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        size = model.config.head_dim
        return torch.ones(*position_ids.shape, size), torch.zeros(*position_ids.shape, size)

    model.model.rotary_emb.forward = unrotated
    model.register_forward_pre_hook(add_distances, with_kwargs=True)
