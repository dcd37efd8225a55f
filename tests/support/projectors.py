"""A model's file with text and vision, taken apart in llama.cpp's way: a text, and a projector."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from tampu.convert.llama import interleave
from tampu.ml.gguf import read_gguf
from tampu.ml.metadata import Metadata
from tampu.ml.quantize import dequantize

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Layout:
    """What llama.cpp calls a family's projector, tensors and keys."""

    kind: str
    names: Mapping[str, str]
    keys: Mapping[str, Any] = field(default_factory=dict)
    has_neighbours: bool = False  # queries and keys are reordered


_BLOCK = {
    r"\.layer_norm1\.|(?<=\d)\.attn_norm\.": ".ln1.",
    r"\.layer_norm2\.|(?<=\d)\.ffn_norm\.": ".ln2.",
    r"\.attn_output\.": ".attn_out.",
    r"(?<=\d)\.mlp\.fc1\.": ".ffn_up.",
    r"(?<=\d)\.mlp\.fc2\.": ".ffn_down.",
}
LAYOUTS = {
    "gemma3_vision": Layout(
        "gemma3",
        _BLOCK
        | {
            "v.patch_embedding": "v.patch_embd",
            "v.position_embedding": "v.position_embd",
            "v.post_layernorm": "v.post_ln",
            "mm_soft_emb_norm": "soft_emb_norm",
            "mm_input_projection": "input_projection",
        },
        {
            "vision.projector.scale_factor": 2,
            "vision.image_mean": [0.5, 0.5, 0.5],
            "vision.image_std": [0.5, 0.5, 0.5],
            "use_gelu": True,
        },
    ),
    "llava": Layout("mlp", _BLOCK),
    "mistral3_vision": Layout(
        "pixtral",
        _BLOCK
        | {
            "v.patch_conv": "v.patch_embd",
            "v.encoder_norm": "v.pre_ln",
            "mm.norm": "mm.input_norm",
            "mm.patch_merger.merging_layer": "mm.patch_merger",
            "mm.linear_": "mm.",
        },
        {"vision.spatial_merge_size": 2},
        has_neighbours=True,
    ),
    "llama4_vision": Layout(
        "llama4",
        _BLOCK
        | {
            "v.patch_embedding": "v.patch_embd",
            "v.class_embedding": "v.class_embd",
            "v.positional_embedding_vlm": "v.position_embd.weight",
            "v.layernorm_pre": "v.pre_ln",
            "v.layernorm_post": "v.post_ln",
            r"v.vision_adapter.mlp.fc": "mm.model.mlp.",
            "mm.linear_1": "mm.model.fc",
        },
        {"vision.projector.scale_factor": 2},
    ),
    "qwen3vl": Layout("qwen3vl_merger", {}),
    "gemma4_seeing": Layout("gemma4v", {}),
    "gemma4_small_seeing": Layout("gemma4v", {}),
    "gemma4_unified_seeing": Layout("gemma4uv", {}),
    "qwen35_seeing": Layout("qwen3vl_merger", {}),
    "qwen25vl": Layout(
        "qwen2.5vl_merger",
        _BLOCK
        | {
            "v.patch_embd_0.weight": "v.patch_embd.weight",
            "v.patch_embd_1.weight": "v.patch_embd.weight.1",
            "v.merger.ln_q": "v.post_ln",
            "v.merger.mlp": "mm",
        },
        {"vision.n_wa_pattern": 2, "vision.fullatt_block_indexes": None},
    ),
}


def take_apart(path: Path, layout: Layout, text: Path, projector: Path) -> None:
    """Write the two files of llama.cpp for a file of text and vision, in F32."""
    file = read_gguf(path)
    data = path.read_bytes()
    arrays = {}
    for info in file.tensors.values():
        stored = data[info.offset : info.offset + info.size_bytes]
        arrays[info.name] = dequantize(stored, info.type, info.shape)
    seeing = {name for name in arrays if name.startswith(("v.", "mm."))}
    keys = _own_keys(file.metadata)
    plain = {key: value for key, value in keys.items() if not _is_of_vision(key)}
    tokens = {key: file.metadata[key] for key in file.metadata if key.startswith("tokenizer.")}
    _write(
        text,
        file.metadata.architecture,
        plain,
        {name: array for name, array in arrays.items() if name not in seeing},
        tokens,
    )
    vision = {key: value for key, value in keys.items() if key.startswith(("vision.", "use_gelu"))}
    vision |= {"has_vision_encoder": True, "vision.projection_dim": keys["embedding_length"]}
    vision |= {"projector_type": layout.kind, **layout.keys}
    heads = int(keys["vision.attention.head_count"])
    renamed = {}
    for name in seeing:
        values = arrays[name]
        if layout.has_neighbours and re.search(r"attn_[qk]\.", name):
            values = interleave(values, heads)
        renamed[_renamed(name, layout)] = values
    _write(projector, "clip", vision, renamed)


def _renamed(name: str, layout: Layout) -> str:
    for pattern, new in layout.names.items():
        name = re.sub(pattern, new, name)
    return name


def _own_keys(metadata: Metadata) -> dict[str, Any]:
    prefix = metadata.architecture + "."
    return {key.removeprefix(prefix): metadata[key] for key in metadata if key.startswith(prefix)}


def _is_of_vision(key: str) -> bool:
    return key.startswith(("vision.", "mm.", "spatial_merge_size", "use_gelu"))


def _write(
    path: Path,
    architecture: str,
    keys: Mapping[str, Any],
    arrays: Mapping[str, Array],
    others: Mapping[str, Any] | None = None,
) -> None:
    writer = gguf.GGUFWriter(path, architecture)
    whole = {f"{architecture}.{key}": value for key, value in keys.items()} | dict(others or {})
    for key, value in whole.items():
        _add(writer, key, value)
    for name, values in arrays.items():
        writer.add_tensor(name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_key_value(key, value, gguf.GGUFValueType.STRING)
    elif isinstance(value, np.ndarray):
        writer.add_array(key, value.tolist())
    else:
        writer.add_array(key, list(value))
