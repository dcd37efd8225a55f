"""Projections in one tensor: queries, keys and values, or the gate and the up projection.

Files of some architectures have them so, such as Phi-3's, and llama.cpp's converter writes the
first with `--fuse-qkv`. The rows of a matrix follow one another in the file, so each part is a
range of the tensor's bytes, and no architecture has to know of it. Recurrent layers have a tensor
of that name too, which is used whole. In the vision encoders of llama.cpp's files queries, keys and
values are always fused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from tampu.errors import ModelFileError
from tampu.gguf_compat.tensors import rows_of
from tampu.ml.gguf_file import GGUFFile, TensorInfo
from tampu.ml.metadata import Metadata

_FUSED = re.compile(r"blk\.(\d{1,4})\.attn_qkv\.(weight|bias)")
_FUSED_GATE = re.compile(r"blk\.(\d{1,4})\.ffn_up\.(weight|bias)")
_FUSED_VISION = re.compile(r"v\.blk\.\d{1,4}\.attn_qkv\.(weight|bias)")


def split_fused(file: GGUFFile) -> GGUFFile:
    """Return the file's header with the parts in place of each fused tensor.

    Raises:
        ModelFileError: if the tensor has no rows left for queries.
    """
    tensors: dict[str, TensorInfo] = {}
    for name, info in file.tensors.items():
        found = _FUSED.fullmatch(name)
        if found and not _is_recurrent(file, int(found[1])):
            rows = _rows(info, file.metadata, int(found[1]))
            tensors |= {part.name: part for part in _parts(info, rows)}
        elif (up := _FUSED_GATE.fullmatch(name)) and _has_gate(info, file, up):
            halves = dict.fromkeys(("ffn_gate", "ffn_up"), info.shape[0] // 2)
            tensors |= {part.name: part for part in _parts(info, halves)}
        elif _FUSED_VISION.fullmatch(name) and info.shape[0] % 3 == 0:
            thirds = dict.fromkeys(("attn_q", "attn_k", "attn_v"), info.shape[0] // 3)
            tensors |= {part.name: part for part in _parts(info, thirds)}
        else:
            tensors[name] = info
    return replace(file, tensors=tensors)


def _has_gate(info: TensorInfo, file: GGUFFile, up: re.Match[str]) -> bool:
    """Return whether an up projection has twice its rows: those of the gate come first."""
    if f"blk.{up[1]}.ffn_gate.{up[2]}" in file.tensors:
        return False
    width = _of_layer(file.metadata, "feed_forward_length", int(up[1]), 0)
    return width > 0 and info.shape[0] == 2 * width


def _is_recurrent(file: GGUFFile, layer: int) -> bool:
    """Return whether a layer is a delta net; Falcon-H1 has Mamba 2, which has `ssm_in`, as well."""
    names = (f"blk.{layer}.{name}.weight" for name in ("ssm_conv1d", "ssm_in"))
    return [name in file.tensors for name in names] == [True, False]


def _rows(info: TensorInfo, metadata: Metadata, layer: int) -> dict[str, int]:
    """Return the number of rows of each part, by the parts' names."""
    heads = _of_layer(metadata, "attention.head_count", layer)
    kv_heads = _of_layer(metadata, "attention.head_count_kv", layer, heads)
    embedding = metadata.integer("embedding_length")
    length = metadata.integer("attention.key_length", embedding // max(heads, 1))
    keys = kv_heads * length
    values = kv_heads * metadata.integer("attention.value_length", length)
    rows = {"attn_q": info.shape[0] - keys - values, "attn_k": keys, "attn_v": values}
    if min(rows.values()) <= 0:
        reason = f"has {info.shape[0]} rows, of which {keys} are keys and {values} values"
        raise ModelFileError(f"tensor {info.name}", reason)
    return rows


def _of_layer(metadata: Metadata, key: str, layer: int, default: int | None = None) -> int:
    """Return a number that is the same for all layers, or listed for each."""
    listed = metadata.integers_per_layer(key, layer + 1, default)
    if layer >= len(listed):
        name = f"key '{metadata.full_key(key)}'"
        raise ModelFileError(name, f"has {len(listed)} numbers, and there is a layer {layer}")
    return listed[layer]


def _parts(info: TensorInfo, rows: dict[str, int]) -> Iterator[TensorInfo]:
    """Yield the parts of a fused tensor, in the order of its rows."""
    stem, _, leaf = info.name.rpartition(".")
    start = 0
    for part, count in rows.items():
        yield rows_of(info, f"{stem.rpartition('.')[0]}.{part}.{leaf}", start, count)
        start += count
