"""LFM2: `lfm2`, whose layers have a short convolution or attention; with experts `lfm2moe`."""

from __future__ import annotations

from dataclasses import replace

from tampu.convert.checkpoint import Stored
from tampu.convert.config import Config, read_rope
from tampu.convert.experts import OF_SOME_LAYERS, SCORE_BIAS, SIGMOID
from tampu.convert.families.llama import GATED
from tampu.convert.family import Family, Parameters, text_parameters
from tampu.convert.keys.experts import moe_parameters

_CONVOLUTION = {
    "model.layers.{}.conv.in_proj": "blk.{}.shortconv.in_proj",
    "model.layers.{}.conv.out_proj": "blk.{}.shortconv.out_proj",
}
_KERNEL = "blk.{}.shortconv.conv.weight"
_ATTENTION = {
    "model.layers.{}.self_attn.q_proj": "blk.{}.attn_q",
    "model.layers.{}.self_attn.k_proj": "blk.{}.attn_k",
    "model.layers.{}.self_attn.v_proj": "blk.{}.attn_v",
    "model.layers.{}.self_attn.out_proj": "blk.{}.attn_output",
    "model.layers.{}.self_attn.q_layernorm": "blk.{}.attn_q_norm",
    "model.layers.{}.self_attn.k_layernorm": "blk.{}.attn_k_norm",
}
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.embedding_norm": "token_embd_norm",
    "model.layers.{}.operator_norm": "blk.{}.attn_norm",
    "model.layers.{}.ffn_norm": "blk.{}.ffn_norm",
    "model.layers.{}.feed_forward.w1": "blk.{}.ffn_gate",
    "model.layers.{}.feed_forward.w2": "blk.{}.ffn_down",
    "model.layers.{}.feed_forward.w3": "blk.{}.ffn_up",
    "lm_head": "output",
}


def parameters(config: Config) -> Parameters:
    """Return the keys of `lfm2`."""
    return _keys(config, _inner(config))


def mixture_parameters(config: Config) -> Parameters:
    """Return the keys of `lfm2moe`, whose readers always renormalize the experts' weights."""
    config.require("use_expert_bias", (True,), default=True)
    config.require("norm_topk_prob", (True,), default=True)
    config.require("routed_scaling_factor", (1.0,), 1.0)  # llama.cpp reads no other
    return {
        **_keys(config, config.integer("intermediate_size")),
        **moe_parameters(config, width="moe_intermediate_size"),
        "leading_dense_block_count": config.natural("num_dense_layers", 2),
        "expert_gating_func": SIGMOID,
    }


def _keys(config: Config, width: int) -> Parameters:
    """Return the keys of both, with the width of the dense feed-forward parts."""
    config.require("conv_bias", (False,), default=False)
    base = read_rope(config).base
    config.require("theta", (base,), default=base)  # published files have it beside rope_theta
    layers = config.layers()
    kinds = config.strings("layer_types")
    if not kinds and "full_attn_idxs" in config:  # the name in files of LFM2's first release
        attention = config.integers("full_attn_idxs")
        kinds = ["full_attention" if index in attention else "conv" for index in range(layers)]
    if len(kinds) != layers or set(kinds) - {"conv", "full_attention"}:
        reason = f"{kinds[:4]} are not conv or full_attention for {layers} layers"
        raise config.error("layer_types", reason)
    keys = text_parameters(config.with_defaults({"intermediate_size": width}), scalings=("none",))
    heads = keys["attention.head_count_kv"]
    return keys | {
        "feed_forward_length": width,
        "attention.head_count_kv": [heads if kind != "conv" else 0 for kind in kinds],
        "attention.layer_norm_rms_epsilon": config.number("norm_eps", 1e-5),
        "shortconv.l_cache": config.integer("conv_L_cache"),
    }


def _inner(config: Config) -> int:
    """Return the width of the feed-forward layers; the checkpoint states it before gating."""
    stated = config.integer("block_ff_dim", config.get("intermediate_size"))
    if not config.flag("block_auto_adjust_ff_dim", default=True):
        return stated
    width = int(config.number("block_ffn_dim_multiplier", 1.0) * int(2 * stated / 3))
    multiple = config.integer("block_multiple_of", 256)
    return -(-width // multiple) * multiple


def channel(kernels: Stored) -> Stored:
    """Return the kernels of a convolution without the axis of its only channel."""
    return kernels[:, 0]


LFM2 = Family(
    architecture="lfm2",
    checkpoints=("Lfm2ForCausalLM",),
    names=NAMES | _CONVOLUTION | _ATTENTION,
    optional=frozenset({*_CONVOLUTION.values(), *_ATTENTION.values(), _KERNEL}),
    splits={"model.layers.{}.conv.conv.weight": {_KERNEL: channel}},
    parameters=parameters,
    defaults={"rope_theta": 1e6, "max_position_embeddings": 128_000},
    tied=True,
)

LFM2_MOE = replace(
    LFM2,
    architecture="lfm2moe",
    checkpoints=("Lfm2MoeForCausalLM",),
    names={
        **LFM2.names,
        "model.layers.{}.feed_forward.gate": "blk.{}.ffn_gate_inp",
        "model.layers.{}.feed_forward.expert_bias": SCORE_BIAS,
    },
    stacks={
        f"model.layers.{{}}.feed_forward.experts.{{}}.{theirs}": f"blk.{{}}.ffn_{ours}_exps"
        for theirs, ours in zip(("w1", "w3", "w2"), GATED, strict=True)
    },
    optional=LFM2.optional | OF_SOME_LAYERS,
    parameters=mixture_parameters,
)
