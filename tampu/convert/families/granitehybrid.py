"""Granite 4: `granitehybrid`, and `granite` or `granitemoe` if no layer has Mamba 2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np

from tampu.convert import mamba2
from tampu.convert.checkpoint import Stored
from tampu.convert.config import Config
from tampu.convert.families.llama import NAMES_WITHOUT_MLP, interleave
from tampu.convert.family import Family, Parameters, text_parameters
from tampu.convert.lazy_tensor import View, nth_part

_LAYER = "model.layers.{}."
_MAMBA, _MIXTURE = f"{_LAYER}mamba.", f"{_LAYER}block_sparse_moe."
_ATTENTION = frozenset(f"blk.{{}}.attn_{part}" for part in ("q", "k", "v", "output"))
_ROUTER = "blk.{}.ffn_gate_inp"


def parameters(config: Config) -> Parameters:
    """Return the keys."""
    config.require("hidden_act", ("silu",), "silu")
    config.require("position_embedding_type", ("nope", "rope", None), None)
    kinds = mamba2.layer_kinds(config, "M*")
    if len(kinds) != config.layers():
        raise config.error("layer_types", f"{len(kinds)} kinds for {config.layers()} layers")
    experts, shared = config.natural("num_local_experts", 8), "shared_intermediate_size"
    width = config.integer("intermediate_size" if experts else shared)
    keys = text_parameters(
        config.with_defaults({"intermediate_size": width}), scalings=("none", "linear", "yarn")
    )
    keys |= {
        "feed_forward_length": width,
        "expert_shared_feed_forward_length": config.integer(shared),
        "attention.scale": config.number("attention_multiplier", 1.0),
        "embedding_scale": config.number("embedding_multiplier", 1.0),
        "residual_scale": config.number("residual_multiplier", 1.0),
        "logit_scale": config.number("logits_scaling", 1.0),
        "rope.scaling.finetuned": config.get("position_embedding_type") == "rope",
        **_expert_keys(config, experts),
    }
    is_hybrid, shape = "M" in kinds, _mamba_keys(config)
    return keys | (_hybrid_keys(keys, kinds) | shape if is_hybrid else {})


def _hybrid_keys(keys: Parameters, kinds: str) -> Parameters:
    heads = keys["attention.head_count_kv"]
    return {
        "attention.head_count_kv": [heads if kind == "*" else 0 for kind in kinds],
        **({} if keys["rope.scaling.finetuned"] else {"context_length": mamba2.CONTEXT}),
    }


def _mamba_keys(config: Config) -> Parameters:
    heads = config.integer("mamba_n_heads", 128)
    inner = config.integer("mamba_expand", 2) * config.integer("hidden_size")
    stated = config.get("mamba_d_head", "auto")
    if inner % heads or stated not in ("auto", inner // heads):
        raise config.error("mamba_d_head", f"{stated} is not {inner} features of {heads} heads")
    return mamba2.shape_keys(
        config.changed({**config.values, "mamba_n_heads": heads, "mamba_d_head": inner // heads}),
        heads="mamba_n_heads",
        features="mamba_d_head",
        groups="mamba_n_groups",
        size="mamba_d_state",
        width="mamba_d_conv",
    )


def _expert_keys(config: Config, experts: int) -> Parameters:
    used = config.natural("num_experts_per_tok", 2)
    if not experts:
        config.get("intermediate_size")  # that of experts
        return {}
    if not 0 < used <= experts:
        raise config.error("num_experts_per_tok", f"{used} of {experts} experts")
    return {"expert_count": experts, "expert_used_count": used}


def fused(parameters: Parameters) -> Mapping[str, Mapping[str, View]]:
    """Return the parts of fused tensors: a shared expert, which without experts is the only one."""
    kind = "_shexp" if "expert_count" in parameters else ""
    shared = [f"blk.{{}}.ffn_{part}{kind}.weight" for part in ("gate", "up", "down")]
    views: dict[str, Mapping[str, View]] = {
        f"{_LAYER}shared_mlp.input_linear.weight": {
            shared[0]: nth_part(0, axis=0),
            shared[1]: nth_part(1, axis=0),
        },
        f"{_LAYER}shared_mlp.output_linear.weight": {shared[2]: np.asarray},
    }
    if kind:
        views |= {
            f"{_MIXTURE}input_linear.weight": {
                "blk.{}.ffn_gate_exps.weight": nth_part(0, axis=1),
                "blk.{}.ffn_up_exps.weight": nth_part(1, axis=1),
            },
            f"{_MIXTURE}output_linear.weight": {"blk.{}.ffn_down_exps.weight": np.asarray},
        }
    has_mamba = "ssm.inner_size" in parameters
    return {**views, **(mamba2.views(_MAMBA, parameters) if has_mamba else {})}


def transform(name: str, values: Stored, parameters: Parameters) -> Stored:
    """Reorder the rows of queries and keys, and make decays of A_log."""
    for part, key in ((".attn_q.", "head_count"), (".attn_k.", "head_count_kv")):
        if part in name:
            heads = cast("int | list[int]", parameters[f"attention.{key}"])
            return interleave(values, max(heads) if isinstance(heads, list) else heads)
    return mamba2.transform(name, values, parameters)


GRANITE_HYBRID = Family(
    architecture="granitehybrid",
    architectures={
        "granitemoe": lambda names: "blk.{}.ssm_in" not in names and _ROUTER in names,
        "granite": lambda names: "blk.{}.ssm_in" not in names,
    },
    checkpoints=("GraniteMoeHybridForCausalLM",),
    names={
        **NAMES_WITHOUT_MLP,
        **mamba2.names(_MAMBA),
        f"{_MIXTURE}router.layer": _ROUTER,
    },
    optional=mamba2.PARTS.union(_ATTENTION, (_ROUTER,)),
    parameters=parameters,
    fused=fused,
    transform=transform,
    defaults={"max_position_embeddings": 2048},
)
