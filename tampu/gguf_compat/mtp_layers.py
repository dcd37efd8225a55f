"""Qwen 3.5's multi-token prediction as Ollama's files have it: under the checkpoint's names.

llama.cpp numbers these layers after the last. The norms are still distances from 1, and the experts
one by one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from tampu.errors import ModelFileError
from tampu.gguf_compat.layout import Keys
from tampu.gguf_compat.tensors import computed, joined
from tampu.ml.gguf_file import GGUFFile, TensorInfo

_LAYER = re.compile(r"mtp\.layers\.(\d{1,4})\.(.+)")
_EXPERT = re.compile(r"mlp\.experts\.(\d{1,5})\.(gate|up|down)_proj\.weight")
_SHARED = {
    "mtp.fc.weight": "eh_proj",
    "mtp.pre_fc_norm_embedding.weight": "enorm",
    "mtp.pre_fc_norm_hidden.weight": "hnorm",
    "mtp.embed_tokens.weight": "embed_tokens",
    "mtp.shared_head.head.weight": "shared_head_head",
    "mtp.shared_head.norm.weight": "shared_head_norm",
    "mtp.norm.weight": "shared_head_norm",
}


def _layers(file: GGUFFile) -> int:
    """Return the number of predicting layers."""
    numbers = [int(found[1]) for name in file.tensors if (found := _LAYER.fullmatch(name))]
    return max(numbers) + 1 if numbers else 0


def count_mtp_layers(file: GGUFFile) -> Keys:
    """Return the number of layers with those that predict, and of these."""
    count = _layers(file)
    if not count:
        return {}
    blocks = file.metadata.integer("block_count")
    return {"block_count": blocks + count, "nextn_predict_layers": count}


def number_mtp_layers(file: GGUFFile, tensors: Iterable[TensorInfo]) -> Iterable[TensorInfo]:
    """Yield the tensors, those of multi-token prediction under llama.cpp's names.

    Raises:
        ModelFileError: for tensors that more than one predicting layer would share, and an expert
            that is missing.
    """
    count = _layers(file)
    first = file.metadata.integer("block_count", default=0) - count  # an adapter has none
    experts: defaultdict[str, dict[int, TensorInfo]] = defaultdict(dict)
    for info in tensors:
        found = _LAYER.fullmatch(info.name)
        part = _EXPERT.fullmatch(found[2]) if found else None
        if found and part:
            name = f"blk.{first + int(found[1])}.ffn_{part[2]}_exps.weight"
            experts[name][int(part[1])] = info
        elif found:
            yield _shifted(info, f"blk.{first + int(found[1])}.{found[2]}")
        elif info.name in _SHARED:
            if count != 1:
                reason = f"is shared by {count} layers of multi-token prediction"
                raise ModelFileError(f"tensor {info.name}", reason)
            yield _shifted(info, f"blk.{first}.nextn.{_SHARED[info.name]}.weight")
        else:
            yield info
    for name, members in experts.items():
        if max(members) >= len(members):
            raise ModelFileError(f"tensor {name}", f"{len(members)} experts, one is missing")
        yield joined(name, [members[index] for index in range(len(members))], stack=True)


def _shifted(info: TensorInfo, name: str) -> TensorInfo:
    """Return a tensor under a name; 1 is added to norms, which are stored as distances from it."""
    if not name.endswith("norm.weight"):
        return replace(info, name=name)
    return computed(name, info.shape, [info], lambda values: values + 1)
