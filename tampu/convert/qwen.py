"""Qwen 2, 2.5 and 3: `qwen2`, `qwen3`, and with mixture of experts `qwen2moe`, `qwen3moe`.

Qwen 2 has biases on query, key and value, Qwen 3 norms on query and key instead. Both rotate the
first half of a head with the second, as GGUF's architectures do: no rows are reordered.
"""

from __future__ import annotations

from tampu.convert.config import Config
from tampu.convert.family import (
    Family,
    Parameters,
    moe_parameters,
    text_parameters,
    with_window,
)
from tampu.convert.llama import NAMES
from tampu.errors import UnsupportedModelError


def parameters(config: Config) -> Parameters:
    """Return the keys of `qwen2` and `qwen3`."""
    config.require("hidden_act", ("silu",), "silu")
    keys = text_parameters(config, scalings=("none", "linear", "yarn"))
    return with_window(keys, _window(config))


def _window(config: Config) -> int | None:
    """Return the sliding window of all layers; None if there is none.

    Raises:
        UnsupportedModelError: if only some layers have it.
    """
    if not config.flag("use_sliding_window", default=False) or "sliding_window" not in config:
        return None
    layers = config.layers()
    full = config.values.get("max_window_layers", layers)
    if full == 0:
        return config.integer("sliding_window")
    if type(full) is int and full >= layers:
        return None
    raise UnsupportedModelError(
        f"{config.where}: max_window_layers is {full!r}; a window in only some layers is not "
        "supported"
    )


QWEN2 = Family(
    architecture="qwen2",
    checkpoints=("Qwen2ForCausalLM",),
    names=NAMES,
    parameters=parameters,
)

_NORMS = {
    "model.layers.{}.self_attn.q_norm": "blk.{}.attn_q_norm",
    "model.layers.{}.self_attn.k_norm": "blk.{}.attn_k_norm",
}
QWEN3 = Family(
    architecture="qwen3",
    checkpoints=("Qwen3ForCausalLM",),
    names=NAMES | _NORMS,
    parameters=parameters,
)


def moe_keys(config: Config) -> Parameters:
    """Return the keys of `qwen2moe` and `qwen3moe`, which have experts in all layers."""
    config.require("decoder_sparse_step", (1,), 1)
    config.require("mlp_only_layers", ([], None), [])
    return parameters(config) | moe_parameters(config, width="moe_intermediate_size")


def qwen2_moe_parameters(config: Config) -> Parameters:
    """Return the keys of `qwen2moe`, whose readers never renormalize the experts' weights."""
    config.require("norm_topk_prob", (False,), default=False)
    width = config.integer("shared_expert_intermediate_size")
    return moe_keys(config) | {"expert_shared_feed_forward_length": width}


def qwen3_moe_parameters(config: Config) -> Parameters:
    """Return the keys of `qwen3moe`, whose readers always renormalize the experts' weights."""
    config.require("norm_topk_prob", (True,), default=False)
    return moe_keys(config)


_MOE_NAMES = {name: target for name, target in NAMES.items() if ".mlp." not in name} | {
    "model.layers.{}.mlp.gate": "blk.{}.ffn_gate_inp"
}
_STACKS = {
    f"model.layers.{{}}.mlp.experts.{{}}.{part}_proj": f"blk.{{}}.ffn_{part}_exps"
    for part in ("gate", "up", "down")
}

QWEN2_MOE = Family(
    architecture="qwen2moe",
    checkpoints=("Qwen2MoeForCausalLM",),
    names=_MOE_NAMES
    | {
        "model.layers.{}.mlp.shared_expert.gate_proj": "blk.{}.ffn_gate_shexp",
        "model.layers.{}.mlp.shared_expert.up_proj": "blk.{}.ffn_up_shexp",
        "model.layers.{}.mlp.shared_expert.down_proj": "blk.{}.ffn_down_shexp",
        "model.layers.{}.mlp.shared_expert_gate": "blk.{}.ffn_gate_inp_shexp",
    },
    stacks=_STACKS,
    parameters=qwen2_moe_parameters,
)
QWEN3_MOE = Family(
    architecture="qwen3moe",
    checkpoints=("Qwen3MoeForCausalLM",),
    names=_MOE_NAMES | _NORMS,
    stacks=_STACKS,
    parameters=qwen3_moe_parameters,
)
