"""Layers of Mamba in checkpoints: their names, which all families share, and their keys."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

import numpy as np

from tampu.convert.checkpoint import Stored, to_float32
from tampu.convert.config import Config
from tampu.convert.families.lfm2 import channel
from tampu.convert.family import Parameters
from tampu.convert.lazy_tensor import View

CONTEXT = 1 << 20  # as llama.cpp states it where nothing is rotated: there is no limit
_NAMES = {
    "in_proj": "blk.{}.ssm_in",
    "conv1d": "blk.{}.ssm_conv1d",  # the bias; the kernels are a view
    "dt_bias": "blk.{}.ssm_dt.bias",
    "out_proj": "blk.{}.ssm_out",
}
FIRST_PARTS = {"x_proj": "ssm_x", "dt_proj": "ssm_dt"}  # of Mamba 1 only
_KINDS = {  # of layers, by letters; transformers had the second names before
    "M": ("linear_attention", "mamba"),
    "*": ("full_attention", "attention"),
    "-": ("mlp",),
    "E": ("moe",),
}
PARTS = frozenset(
    {
        *_NAMES.values(),
        *(f"blk.{{}}.{name}" for name in ("ssm_conv1d.weight", "ssm_a", "ssm_d")),
        "blk.{}.ssm_norm.weight",
    }
)
"""The GGUF names of the tensors: not every layer has them."""


def layer_kinds(config: Config, allowed: str = "M*-E") -> str:
    """Return a letter for each layer: M (Mamba 2), * (attention), - (dense) or E (experts)."""
    key = next(
        (key for key in ("layers_block_type", "layer_types") if key in config), "layer_types"
    )
    letters = {name: letter for letter, names in _KINDS.items() for name in names}
    stated = config.strings(key)
    if not stated or any(letters.get(each, "?") not in allowed for each in stated):
        known = ", ".join(_KINDS[letter][0] for letter in allowed)
        raise config.error(key, f"{stated[:4]} are not kinds of layers: {known}")
    return "".join(letters[each] for each in stated)


def names(prefix: str) -> dict[str, str]:
    """Return the names of the tensors that are stored as they are.

    Args:
        prefix: of a layer's tensors in checkpoints, with `{}` for its number and a dot at its end.
    """
    return {f"{prefix}{theirs}": ours for theirs, ours in _NAMES.items()}


def views(prefix: str, parameters: Parameters) -> Mapping[str, Mapping[str, View]]:
    """Return the names of the others: with the axis of heads or groups first, as for Mamba 1."""

    def column(values: Stored) -> Stored:
        return values.reshape(-1, 1)

    def grouped(values: Stored) -> Stored:
        return values.reshape(cast("int", parameters["ssm.group_count"]), -1)

    return {
        f"{prefix}conv1d.weight": {"blk.{}.ssm_conv1d.weight": channel},
        f"{prefix}A_log": {"blk.{}.ssm_a": column},
        f"{prefix}D": {"blk.{}.ssm_d": column},
        f"{prefix}norm.weight": {"blk.{}.ssm_norm.weight": grouped},
    }


def transform(name: str, values: Stored, parameters: Parameters) -> Stored:  # noqa: ARG001
    """Make decays of A_log."""
    return -np.exp(to_float32(values)) if name.endswith(".ssm_a") else values


def first_names(prefix: str) -> dict[str, str]:
    """Return the names of Mamba 1's tensors that are stored as they are, as `names` does."""
    second = {name: ours for name, ours in names(prefix).items() if "dt_bias" not in name}
    first = {f"{prefix}{theirs}": f"blk.{{}}.{ours}" for theirs, ours in FIRST_PARTS.items()}
    return second | first


def first_views(prefix: str) -> Mapping[str, Mapping[str, View]]:
    """Return the names of the others of Mamba 1."""
    return {
        f"{prefix}conv1d.weight": {"blk.{}.ssm_conv1d.weight": channel},
        f"{prefix}A_log": {"blk.{}.ssm_a": np.asarray},
        f"{prefix}D": {"blk.{}.ssm_d": np.asarray},
    }


def shape_keys(
    config: Config, *, heads: str, features: str, groups: str, size: str, width: str
) -> Parameters:
    """Return the keys of the layers' shape, given the names of the numbers in config.json.

    The steps of the scan must not be limited: files cannot say so.
    """
    unlimited = [
        [0.0, math.inf],
        [0.0, {"__float__": "Infinity"}],
    ]  # transformers writes the second
    config.require("time_step_limit", [None, *unlimited], None)
    count, each = config.integer(heads), config.integer(features)
    if count % config.integer(groups, 1):
        reason = f"{config.integer(groups)} groups do not divide {count} heads"
        raise config.error(groups, reason)
    return {
        "ssm.conv_kernel": config.integer(width, 4),
        "ssm.inner_size": count * each,
        "ssm.state_size": config.integer(size),
        "ssm.time_step_rank": count,
        "ssm.group_count": config.integer(groups, 1),
    }
