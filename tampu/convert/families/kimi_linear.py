"""Kimi Linear: `kimi-linear`, with Kimi Delta Attention, latent attention and experts.

A layer without heads of keys, in `attention.head_count_kv`, has delta attention.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from tampu.convert.checkpoint import Stored, StoredTensor, to_float32
from tampu.convert.config import Config
from tampu.convert.experts import STACKS, count_dense_layers, deepseek_parameters
from tampu.convert.families import deepseek2
from tampu.convert.family import Family, Parameters
from tampu.convert.lazy_tensor import View

_ATTENTION = "model.layers.{}.self_attn."
_DELTA = {
    f"{_ATTENTION}{theirs}": f"blk.{{}}.{ours}"
    for theirs, ours in {
        "k_proj": "attn_k",
        "v_proj": "attn_v",
        "q_conv1d": "ssm_conv1d_q",
        "k_conv1d": "ssm_conv1d_k",
        "v_conv1d": "ssm_conv1d_v",
        "b_proj": "ssm_beta",
        "f_a_proj": "ssm_f_a",
        "f_b_proj": "ssm_f_b",
        "dt_bias": "ssm_dt.bias",
        "g_a_proj": "ssm_g_a",
        "g_b_proj": "ssm_g_b",
        "o_norm": "ssm_norm",
    }.items()
}
_LATENT = ("attn_kv_a_mqa", "attn_kv_a_norm", "attn_k_b.weight", "attn_v_b.weight")
_PARTS = {  # of the names of a mixture
    ".block_sparse_moe.": ".mlp.",
    ".w1.weight": ".gate_proj.weight",
    ".w2.weight": ".down_proj.weight",
    ".w3.weight": ".up_proj.weight",
}
_NAMES = {  # transformers' name of a key, by that in config.json
    "model_max_length": "max_position_embeddings",
    "moe_renormalize": "norm_topk_prob",
    "num_expert_group": "n_group",
    "num_experts_per_token": "num_experts_per_tok",
}
_FULL, _RECURRENT = "full_attention", "linear_attention"


def parameters(config: Config) -> Parameters:
    """Return the keys of `kimi-linear`."""
    config = config.renamed(_NAMES)
    config.require("mla_use_nope", (True,), default=True)
    config.require("moe_router_activation_func", ("sigmoid",), "sigmoid")
    config.require("moe_layer_freq", (1,), 1)
    config.require("num_nextn_predict_layers", (0, None), 0)
    for key in ("head_dim", "use_grouped_topk"):
        config.get(key)  # no layer has such heads; and groups are what `n_group` says
    plain = config.changed(
        {key: value for key, value in config.values.items() if key != "head_dim"}
    )
    keys = deepseek2.latent_keys(plain)
    dense = config.with_defaults({"first_k_dense_replace": count_dense_layers(config)})
    kinds = layer_kinds(config)
    return {
        **keys,
        **deepseek_parameters(dense, experts="num_experts", shared="num_shared_experts"),
        **_delta_keys(config),
        "attention.head_count_kv": [int(kind == _FULL) for kind in kinds],
    }


def layer_kinds(config: Config) -> list[str]:
    """Return the kind of each layer: `full_attention` or `linear_attention`.

    Raises:
        ModelFileError: if they are not those of all layers.
    """
    layers, key = config.layers(), "layer_types"
    kinds = config.strings(key)
    if not kinds:
        key = "linear_attn_config"
        section = config.section(key)
        full, recurrent = section.integers("full_attn_layers"), section.integers("kda_layers")
        if sorted(full + recurrent) != [*range(1, layers + 1)]:
            raise config.error(key, f"{full} and {recurrent} are not 1 to {layers}")
        kinds = [_FULL if number in full else _RECURRENT for number in range(1, layers + 1)]
    if len(kinds) != layers or set(kinds) != {_FULL, _RECURRENT}:
        reason = f"{kinds[:4]} are not {_FULL} and {_RECURRENT} for {layers} layers"
        raise config.error(key, reason)
    return kinds


def _delta_keys(config: Config) -> Parameters:
    """Return the keys of the delta attention's shape, which transformers names another way."""
    if "linear_attn_config" in config:
        section = config.section("linear_attn_config")
        names = ("num_heads", "head_dim", "short_conv_kernel_size")
        values = {f"linear_{name}": section.get(name) for name in names}
        config = config.changed({**config.values, **values}).renamed(
            {"linear_short_conv_kernel_size": "linear_conv_kernel_dim"}
        )
    heads = config.integer("num_attention_heads")
    config.require("linear_num_heads", (heads,), 32)  # files have one number of both
    return {
        "kda.head_dim": config.integer("linear_head_dim", 128),
        "ssm.conv_kernel": config.integer("linear_conv_kernel_dim", 4),
    }


def gather(tensors: Iterable[StoredTensor]) -> Iterable[StoredTensor]:
    """Rename the tensors of experts as DeepSeek names them."""
    for tensor in tensors:
        name = tensor.name
        for theirs, ours in _PARTS.items():
            name = name.replace(theirs, ours)
        yield replace(tensor, name=name)


def transform(name: str, values: Stored, parameters: Parameters) -> Stored:  # noqa: ARG001
    """Make decays of A_log."""
    return -np.exp(to_float32(values)) if name.endswith(".ssm_a") else values


def fused(parameters: Parameters) -> Mapping[str, Mapping[str, View]]:
    """Return the halves of `kv_b_proj`, and the decays with a row for each head."""

    def column(values: Stored) -> Stored:
        return values.reshape(-1, 1)

    decays = {f"{_ATTENTION}A_log": {"blk.{}.ssm_a": column}}
    return {**deepseek2.halves_of_kv_b(parameters), **decays}


KIMI_LINEAR = Family(
    architecture="kimi-linear",
    checkpoints=("KimiLinearForCausalLM",),
    names=deepseek2.NAMES | _DELTA,
    stacks=STACKS,
    optional=deepseek2.OPTIONAL
    | frozenset(_DELTA.values())
    | {f"blk.{{}}.{name}" for name in (*_LATENT, "ssm_a")},
    parameters=parameters,
    fused=fused,
    gather=gather,
    transform=transform,
)
