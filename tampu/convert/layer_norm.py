"""What families of decoders with LayerNorm share: their keys, and fused projections by head."""

from __future__ import annotations

import numpy as np

from tampu.convert.checkpoint import Stored
from tampu.convert.config import Config
from tampu.convert.family import Parameters, text_parameters


def layer_norm_parameters(
    config: Config, *, epsilon: str = "layer_norm_eps", rotated: float = 1.0
) -> Parameters:
    """Return the keys common to decoders with LayerNorm and RoPE.

    Args:
        config: the text model's configuration.
        epsilon: the key in config.json of the epsilon of all norms.
        rotated: which part of a head is rotated if config.json does not say so.
    """
    keys = text_parameters(config, scalings=("none", "linear", "yarn"), rotated_part=rotated)
    del keys["attention.layer_norm_rms_epsilon"]
    return keys | {"attention.layer_norm_epsilon": config.number(epsilon, 1e-5)}


def without_rope(keys: Parameters) -> Parameters:
    """Return the keys of a decoder whose queries and keys are not rotated."""
    return {key: value for key, value in keys.items() if not key.startswith("rope.")}


def ungrouped(values: Stored, parameters: Parameters) -> Stored:
    """Return the rows of a fused projection: all queries, then all keys, then all values.

    Checkpoints have for each head of keys the queries that share it, the key and the value.
    """
    heads, kv_heads = parameters["attention.head_count"], parameters["attention.head_count_kv"]
    if not isinstance(heads, int) or not isinstance(kv_heads, int):
        raise ValueError("heads differ by layer")
    size = values.shape[0] // (heads + 2 * kv_heads)
    grouped = values.reshape(kv_heads, -1, size, *values.shape[1:])
    parts = (grouped[:, :-2], grouped[:, -2], grouped[:, -1])
    return np.concatenate([part.reshape(-1, *values.shape[1:]) for part in parts])


def ungroup_attention(name: str, values: Stored, parameters: Parameters) -> Stored:
    """Reorder the rows of fused projections and their biases, as `ungrouped`."""
    return ungrouped(values, parameters) if ".attn_qkv." in name else values
