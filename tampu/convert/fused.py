"""Fused projections of queries, keys and values, which checkpoints have group by group.

A group is a head of keys: the queries that share it, the key, the value. Files have all queries,
then all keys, then all values, in one tensor (`ungroup_attention`) or three (`attention_parts`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tampu.convert.checkpoint import Stored
from tampu.convert.family import Parameters
from tampu.convert.lazy_tensor import View


def ungrouped(values: Stored, parameters: Parameters) -> list[Stored]:
    """Return the rows of all queries, of all keys and of all values."""
    heads, kv_heads = parameters["attention.head_count"], parameters["attention.head_count_kv"]
    if not isinstance(heads, int) or not isinstance(kv_heads, int):
        raise ValueError("heads differ by layer")
    size = values.shape[0] // (heads + 2 * kv_heads)
    grouped = values.reshape(kv_heads, -1, size, *values.shape[1:])
    parts = (grouped[:, :-2], grouped[:, -2], grouped[:, -1])
    return [part.reshape(-1, *values.shape[1:]) for part in parts]


def ungroup_attention(name: str, values: Stored, parameters: Parameters) -> Stored:
    """Reorder the rows of fused projections and of their biases."""
    if ".attn_qkv." not in name:
        return values
    return np.concatenate(ungrouped(values, parameters))


def attention_parts(name: str, parameters: Parameters) -> Mapping[str, Mapping[str, View]]:
    """Return the three parts of each layer's fused matrix `name`."""

    def part(index: int) -> View:
        return lambda values: ungrouped(values, parameters)[index]

    return {name: {f"blk.{{}}.attn_{each}.weight": part(i) for i, each in enumerate("qkv")}}
