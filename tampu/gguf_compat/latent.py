"""Latent attention whose matrix of keys and values is one tensor, `attn_kv_b`.

Files made before llama.cpp divided it have it so, such as those of DeepSeek V2 that Ollama
publishes; MiniCPM3's always have. The keys of the header are then those of attention whose heads
all have keys and values of their own. Each head has rows of keys, then of values:
(heads * (content + value), rank).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from tampu.errors import ModelFileError
from tampu.gguf_compat.tensors import Floats, chosen_rows, computed
from tampu.ml.gguf_file import GGUFFile, TensorInfo
from tampu.ml.metadata import Metadata
from tampu.ml.types import GGMLType

_FUSED = re.compile(r"blk\.(\d{1,4})\.attn_kv_b\.weight")


@dataclass(frozen=True, slots=True)
class _Heads:
    count: int
    content: int  # features of a key that are not rotated
    rotated: int
    value: int
    rank: int


def split_latent(file: GGUFFile) -> GGUFFile:
    """Return the header with `attn_k_b` and `attn_v_b`, and the keys of a cache of latent rows.

    Raises:
        ModelFileError: for a tensor of another shape than the keys say.
    """
    if not any(_FUSED.fullmatch(name) for name in file.tensors):
        return file
    heads = _heads(file.metadata)
    tensors: dict[str, TensorInfo] = {}
    for name, info in file.tensors.items():
        if found := _FUSED.fullmatch(name):
            tensors |= {part.name: part for part in _parts(info, f"blk.{found[1]}", heads)}
        else:
            tensors[name] = info
    return replace(file, tensors=tensors, metadata=_keys(file.metadata, heads))


def _heads(metadata: Metadata) -> _Heads:
    length = metadata.integer("attention.key_length")
    rotated = metadata.integer("rope.dimension_count")
    if not 0 < rotated < length:
        name = f"key '{metadata.full_key('rope.dimension_count')}'"
        raise ModelFileError(name, f"{rotated} of {length} features of a key are rotated")
    return _Heads(
        count=metadata.integer("attention.head_count"),
        content=length - rotated,
        rotated=rotated,
        value=metadata.integer("attention.value_length"),
        rank=metadata.integer("attention.kv_lora_rank"),
    )


def _keys(metadata: Metadata, heads: _Heads) -> Metadata:
    changed = {
        "head_count_kv": 1,
        "key_length": heads.rank + heads.rotated,
        "value_length": heads.rank,
        "key_length_mla": heads.content + heads.rotated,
        "value_length_mla": heads.value,
    }
    named = {metadata.full_key(f"attention.{key}"): value for key, value in changed.items()}
    return Metadata({**metadata, **named})


def _parts(info: TensorInfo, layer: str, heads: _Heads) -> list[TensorInfo]:
    """Return a layer's keys (heads, rank, content), which are computed, and its values.

    Those are (heads, value, rank).
    """
    both = heads.content + heads.value
    if info.shape != (heads.count * both, heads.rank):
        reason = f"has the shape {list(info.shape)}, not {[heads.count * both, heads.rank]}"
        raise ModelFileError(f"tensor {info.name}", reason)

    def keys(values: Floats) -> Floats:
        return values.reshape(heads.count, both, heads.rank)[:, : heads.content].swapaxes(1, 2)

    shape = (heads.count, heads.rank, heads.content)
    rows = [head * both + row for head in range(heads.count) for row in range(heads.content, both)]
    values = chosen_rows(info, f"{layer}.attn_v_b.weight", rows)
    type_ = GGMLType.F32 if info.type is GGMLType.F32 else GGMLType.F16
    return [
        computed(f"{layer}.attn_k_b.weight", shape, [info], keys, type_),
        replace(values, shape=(heads.count, heads.value, heads.rank)),
    ]
