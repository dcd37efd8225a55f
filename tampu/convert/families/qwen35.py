"""Qwen 3.5 to 3.8 and Qwen3-Next: `qwen35`, with experts `qwen35moe`, and `qwen3next`.

In `qwen35` the value heads of the gated delta nets are reordered: checkpoints have those of one key
head beside one another, files the first of every key head, then the second of each, and so on.
Norms become weights around 1, A_log becomes -exp(A_log). The layers of multi-token prediction,
`mtp.` in a checkpoint, follow the others. The vision encoder is that of Qwen3-VL.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import cast

import numpy as np

from tampu.convert.checkpoint import Stored, StoredTensor, to_float32
from tampu.convert.config import Config, rope_settings
from tampu.convert.families.lfm2 import channel
from tampu.convert.families.llama import GATED, NAMES, QK_NORM_NAMES
from tampu.convert.families.qwen3vl import (
    IMAGE_STEPS,
    TOWER_NAMES,
    TOWER_PREFIXES,
    TOWER_SPLITS,
    image_settings,
    tower_parameters,
)
from tampu.convert.family import Family, Parameters, text_parameters
from tampu.convert.keys.experts import moe_parameters
from tampu.convert.lazy_tensor import View, nth_part

_PREFIXES = {"model.language_model.": "model.", "model.mtp.": "mtp."}
_LAYER = "model.layers.{}."
_DELTA = {
    f"{_LAYER}linear_attn.{theirs}": f"blk.{{}}.{ours}"
    for theirs, ours in {
        "in_proj_qkv": "attn_qkv",
        "in_proj_z": "attn_gate",
        "in_proj_a": "ssm_alpha",
        "in_proj_b": "ssm_beta",
        "in_proj_ba": "ssm_ba",
        "A_log": "ssm_a",
        "dt_bias": "ssm_dt.bias",
        "norm": "ssm_norm",
        "out_proj": "ssm_out",
    }.items()
}
_PREDICTION = {
    "eh_proj": "mtp.fc",
    "enorm": "mtp.pre_fc_norm_embedding",
    "hnorm": "mtp.pre_fc_norm_hidden",
    "shared_head_norm": "mtp.norm",
}
_PREDICTION_NAMES = {f"{_LAYER}{name}": f"blk.{{}}.nextn.{name}" for name in _PREDICTION}
_MIXTURE = {
    f"{_LAYER}mlp.gate": "blk.{}.ffn_gate_inp",
    **{f"{_LAYER}mlp.shared_expert.{part}_proj": f"blk.{{}}.ffn_{part}_shexp" for part in GATED},
    f"{_LAYER}mlp.shared_expert_gate": "blk.{}.ffn_gate_inp_shexp",
}
_CONVOLUTION: Mapping[str, Mapping[str, View]] = {
    f"{_LAYER}linear_attn.conv1d.weight": {"blk.{}.ssm_conv1d.weight": channel}
}
_EXPERTS: Mapping[str, Mapping[str, View]] = {
    f"{_LAYER}mlp.experts.gate_up_proj": {
        "blk.{}.ffn_gate_exps.weight": nth_part(0, axis=1),
        "blk.{}.ffn_up_exps.weight": nth_part(1, axis=1),
    },
    f"{_LAYER}mlp.experts.down_proj": {"blk.{}.ffn_down_exps.weight": np.asarray},
}
_STACKS = {f"{_LAYER}mlp.experts.{{}}.{part}_proj": f"blk.{{}}.ffn_{part}_exps" for part in GATED}
_DENSE = NAMES | QK_NORM_NAMES | {f"{_LAYER}post_attention_layernorm": "blk.{}.post_attention_norm"}
_SPARSE = {name: target for name, target in _DENSE.items() if ".mlp." not in name} | _MIXTURE
_OF_SOME_LAYERS = frozenset(
    {
        *_DELTA.values(),
        *_PREDICTION_NAMES.values(),
        *(name for name in _DENSE.values() if ".attn_" in name and name != "blk.{}.attn_norm"),
        "blk.{}.ssm_conv1d.weight",
        "blk.{}.attn_qkv.weight",
        "blk.{}.attn_gate.weight",
    }
)  # fmt: skip


def parameters(config: Config) -> Parameters:
    """Return the keys that all three architectures have."""
    config = _text(config)
    config.require("hidden_act", ("silu",), "silu")
    keys = text_parameters(config, scalings=("none", "linear", "yarn"), rotated_part=0.25)
    return keys | _delta_keys(config) | _layer_keys(config)


def _text(config: Config) -> Config:
    """Return the text model's configuration."""
    return config.section("text_config") if "text_config" in config else config


def _delta_keys(config: Config) -> Parameters:
    keys = config.integer("linear_num_key_heads", 16)
    values = config.integer("linear_num_value_heads", 32)
    features = config.integer("linear_key_head_dim", 128)
    config.require("linear_value_head_dim", (features,), 128)
    if values % keys:
        reason = f"{values} heads are not a multiple of {keys}"
        raise config.error("linear_num_value_heads", reason)
    return {
        "ssm.conv_kernel": config.integer("linear_conv_kernel_dim", 4),
        "ssm.state_size": features,
        "ssm.group_count": keys,
        "ssm.time_step_rank": values,
        "ssm.inner_size": values * features,
    }


def _layer_keys(config: Config) -> Parameters:
    """Return which layers have a gated delta net: those between every so many with attention."""
    layers, interval = config.layers(), config.integer("full_attention_interval", 4)
    names = ("full_attention", "linear_attention")
    kinds = config.strings("layer_types")
    kinds = kinds or [names[(index + 1) % interval > 0] for index in range(layers)]
    if len(kinds) != layers or set(kinds) - set(names):
        reason = f"{kinds[:4]} are not {' or '.join(names)} for {layers} layers"
        raise config.error("layer_types", reason)
    interval = kinds.index(names[0]) + 1 if names[0] in kinds else layers + 1
    if kinds == [names[(index + 1) % interval > 0] for index in range(layers)]:
        return {"full_attention_interval": interval}
    return {"attention.recurrent_layers": [kind == names[1] for kind in kinds]}


def position_keys(config: Config) -> Parameters:
    """Return how many pairs each number of a position rotates."""
    config = _text(config)
    rope = rope_settings(config)
    rope.require("mrope_interleaved", (True,), default=True)
    return {"rope.dimension_sections": [*rope.integers("mrope_section", [11, 11, 10]), 0][:4]}


def mixture_parameters(config: Config) -> Parameters:
    """Return the keys of the mixtures, which have experts in all layers and always renormalize."""
    config = _text(config)
    config.require("decoder_sparse_step", (1,), 1)
    config.require("mlp_only_layers", ([], None), [])
    config.require("norm_topk_prob", (True,), default=True)
    width = config.integer("moe_intermediate_size")
    shared = config.integer("shared_expert_intermediate_size")
    keys = parameters(config.with_defaults({"intermediate_size": width}))
    keys |= moe_parameters(config, width="moe_intermediate_size")
    return keys | {"expert_shared_feed_forward_length": shared}


def count_mtp_layers(parameters: Parameters, names: Collection[str]) -> Parameters:
    """Count the layers of multi-token prediction: a checkpoint may lack those that it states."""
    places = [text_name(name).split(".") for name in names]
    found = {at[2] for at in places if at[:2] == ["mtp", "layers"]}
    if not found:
        return parameters
    layers = _number(parameters, "block_count") + len(found)
    return parameters | {"block_count": layers, "nextn_predict_layers": len(found)}


def text_name(name: str) -> str:
    """Return the name that a tensor has in a checkpoint without vision."""
    old = next((old for old in _PREFIXES if name.startswith(old)), "")
    return _PREFIXES.get(old, "") + name.removeprefix(old)


def gather(tensors: Iterable[StoredTensor]) -> Iterable[StoredTensor]:
    """Rename the tensors to those of a text model, MTP layers to layers after the last."""
    return number_mtp_layers(replace(each, name=text_name(each.name)) for each in tensors)


def number_mtp_layers(tensors: Iterable[StoredTensor]) -> Iterable[StoredTensor]:
    """Rename the tensors of multi-token prediction to those of the layers after the last."""
    held = list(tensors)
    places = [tensor.name.split(".") for tensor in held]
    last = max((int(at[2]) for at in places if at[:2] == ["model", "layers"]), default=-1)
    parts = {f"{name}.weight": f"{part}.weight" for part, name in _PREDICTION.items()}
    for tensor, at in zip(held, places, strict=True):
        if tensor.name in parts:
            yield replace(tensor, name=f"model.layers.{last + 1}.{parts[tensor.name]}")
        elif at[:2] == ["mtp", "layers"]:
            yield replace(
                tensor, name=".".join(["model", "layers", str(last + 1 + int(at[2])), *at[3:]])
            )
        else:
            yield tensor


def transform(name: str, values: Stored, parameters: Parameters) -> Stored:  # noqa: ARG001
    """Add 1 to the norms except that of the delta nets, and make decays of A_log."""
    if name.startswith(("v.", "mm.")):
        return values
    if name.endswith("norm.weight") and not name.endswith("ssm_norm.weight"):
        return to_float32(values) + 1
    return -np.exp(to_float32(values)) if name.endswith(".ssm_a") else values


def transform_tiled(name: str, values: Stored, parameters: Parameters) -> Stored:
    """Reorder the value heads, too."""
    part = name.split(".")[2] if name.startswith("blk.") else ""
    if part in ("attn_gate", "ssm_alpha", "ssm_beta", "ssm_a", "ssm_dt"):
        values = tiled(values, parameters)
    elif part in ("attn_qkv", "ssm_conv1d"):
        first = 2 * _number(parameters, "ssm.group_count") * _number(parameters, "ssm.state_size")
        values = np.concatenate([values[:first], tiled(values[first:], parameters)])
    return transform(name, values, parameters)


def tiled_inputs(name: str, values: Stored, parameters: Parameters) -> Stored:
    """Reorder the value heads where they are inputs."""
    if not name.endswith(".ssm_out.weight"):
        return values
    return np.ascontiguousarray(tiled(values.T, parameters).T)


def tiled(values: Stored, parameters: Parameters) -> Stored:
    """Return the rows of value heads 0, 1, 2, 3 of two key heads in the order 0, 2, 1, 3."""
    keys, heads = (_number(parameters, f"ssm.{key}") for key in ("group_count", "time_step_rank"))
    rows = values.reshape(keys, heads // keys, values.shape[0] // heads, *values.shape[1:])
    return np.ascontiguousarray(rows.swapaxes(0, 1)).reshape(values.shape)


def fused_projections(parameters: Parameters) -> Mapping[str, Mapping[str, View]]:
    """Return the parts of Qwen3-Next's projection: a query, key, values and gates per key head."""
    keys, heads = (_number(parameters, f"ssm.{key}") for key in ("group_count", "time_step_rank"))
    features, each = _number(parameters, "ssm.state_size"), heads // keys
    ends = np.cumsum([features, features, each * features])

    def cut(first: int, last: int) -> View:
        def view(values: Stored) -> Stored:
            grouped = values.reshape(keys, -1, values.shape[1])
            parts = np.split(grouped, ends, axis=1)[first:last]
            return np.concatenate([part.reshape(-1, values.shape[1]) for part in parts])

        return view

    parts = {"blk.{}.attn_qkv.weight": cut(0, 3), "blk.{}.attn_gate.weight": cut(3, 4)}
    return {f"{_LAYER}linear_attn.in_proj_qkvz.weight": parts}


def _number(parameters: Parameters, key: str) -> int:
    return cast("int", parameters[key])


def with_vision(family: Family, checkpoint: str) -> Family:
    """Return the family of the same text model with a vision encoder."""

    def parameters(config: Config) -> Parameters:
        return {
            **family.parameters(config),
            **tower_parameters(config.section("vision_config")),
        }

    return replace(
        family,
        checkpoints=(checkpoint,),
        names={**family.names, **TOWER_NAMES},
        splits={**family.splits, **TOWER_SPLITS},
        parameters=parameters,
        image_settings=image_settings,
        image_steps=IMAGE_STEPS,
        prefixes=TOWER_PREFIXES,
        text_only=family,
    )


QWEN35 = Family(
    architecture="qwen35",
    checkpoints=("Qwen3_5ForCausalLM",),
    names=_DENSE | _DELTA | _PREDICTION_NAMES,
    optional=_OF_SOME_LAYERS,
    splits=_CONVOLUTION,
    parameters=lambda config: parameters(config) | position_keys(config),
    adapt=count_mtp_layers,
    defaults={"max_position_embeddings": 32_768},
    gather=gather,
    transform=transform_tiled,
    transform_inputs=tiled_inputs,
)
QWEN35_MOE = Family(
    architecture="qwen35moe",
    checkpoints=("Qwen3_5MoeForCausalLM",),
    names=_SPARSE | _DELTA | _PREDICTION_NAMES,
    optional=_OF_SOME_LAYERS,
    splits={**_CONVOLUTION, **_EXPERTS},
    stacks=_STACKS,
    parameters=lambda config: mixture_parameters(config) | position_keys(config),
    adapt=count_mtp_layers,
    defaults={"max_position_embeddings": 32_768},
    gather=gather,
    transform=transform_tiled,
    transform_inputs=tiled_inputs,
)
QWEN35_VISION = with_vision(QWEN35, "Qwen3_5ForConditionalGeneration")
QWEN35_MOE_VISION = with_vision(QWEN35_MOE, "Qwen3_5MoeForConditionalGeneration")
QWEN3_NEXT = Family(
    architecture="qwen3next",
    checkpoints=("Qwen3NextForCausalLM",),
    names=_SPARSE | _DELTA | _PREDICTION_NAMES,
    optional=_OF_SOME_LAYERS,
    splits={**_CONVOLUTION, **_EXPERTS},
    fused=fused_projections,
    stacks=_STACKS,
    parameters=mixture_parameters,
    adapt=count_mtp_layers,
    defaults={"max_position_embeddings": 32_768},
    gather=gather,
    transform=transform,
)
