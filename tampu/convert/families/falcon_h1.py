"""Falcon-H1: `falcon-h1`. Its multipliers (muP) become part of the weights that they follow."""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt

from tampu.convert import mamba2
from tampu.convert.config import Config
from tampu.convert.families.llama import GATED, NAMES_WITHOUT_MLP
from tampu.convert.family import Family, Parameters, text_parameters

_LAYER = "model.layers.{}."
_MAMBA = f"{_LAYER}mamba."
_BIASES = ("attention_bias", "mlp_bias", "mamba_proj_bias", "projectors_bias")
_NAMES = {name: target for name, target in NAMES_WITHOUT_MLP.items() if "norm" not in name} | {
    f"{_LAYER}input_layernorm": "blk.{}.attn_norm",
    "model.final_layernorm": "output_norm",
}
_NORM = {f"{_LAYER}pre_ff_layernorm.weight": {"blk.{}.ffn_norm": np.asarray}}  # as in llama.cpp


def parameters(config: Config) -> Parameters:
    """Return the keys of `falcon-h1`."""
    config.require("hidden_act", ("silu",), "silu")
    for key in _BIASES:  # multipliers of both a weight and its inputs would not fit them
        config.require(key, (False,), default=False)
    if config.flag("mamba_rms_norm", default=False):
        config.require("mamba_norm_before_gate", (False,), default=True)
    config.get("mamba_norm_before_gate")
    config.require("layer_types", (["hybrid"] * config.layers(), None), None)
    heads, inner = config.integer("mamba_n_heads", 128), _inner(config)
    stated = config.get("mamba_d_head", "auto")
    if inner % heads or stated not in ("auto", inner // heads):
        raise config.error("mamba_d_head", f"{stated} is not {inner} features of {heads} heads")
    return text_parameters(config, scalings=("none", "linear")) | mamba2.shape_keys(
        config.changed({**config.values, "mamba_n_heads": heads, "mamba_d_head": inner // heads}),
        heads="mamba_n_heads",
        features="mamba_d_head",
        groups="mamba_n_groups",
        size="mamba_d_state",
        width="mamba_d_conv",
    )


def _inner(config: Config) -> int:
    usual = config.integer("mamba_expand", 2) * config.integer("hidden_size")
    return config.integer("mamba_d_ssm", usual)


def multipliers(config: Config) -> dict[str, npt.NDArray[np.float32]]:
    """Return what the weights are multiplied by."""

    def number(key: str) -> float:
        return config.number(key, 1.0)

    if config.flag("tie_word_embeddings", default=False):
        config.require("lm_head_multiplier", (number("embedding_multiplier"),), 1.0)
    gate, down = _several(config, "mlp_multipliers", 2)
    inner, states = (
        _inner(config),
        config.integer("mamba_n_groups") * config.integer("mamba_d_state"),
    )
    rows = (inner, inner, states, states, config.integer("mamba_n_heads"))  # z, x, B, C, dt
    mixed = np.repeat(_several(config, "ssm_multipliers", 5), rows) * number("ssm_in_multiplier")
    attention = number("attention_in_multiplier")
    found = {
        "token_embd": number("embedding_multiplier"),
        "output": number("lm_head_multiplier"),
        "blk.{}.attn_q": attention,
        "blk.{}.attn_k": attention * number("key_multiplier"),
        "blk.{}.attn_v": attention,
        "blk.{}.attn_output": number("attention_out_multiplier"),
        "blk.{}.ffn_gate": gate,
        "blk.{}.ffn_down": down,
        "blk.{}.ssm_in": mixed[:, None],
        "blk.{}.ssm_out": number("ssm_out_multiplier"),
    }
    return {f"{name}.weight": np.asarray(each, np.float32) for name, each in found.items()}


def _several(config: Config, key: str, count: int) -> list[float]:
    stated = config.numbers(key) if key in config else [1.0] * count
    if len(stated) != count:
        raise config.error(key, f"{len(stated)} numbers, not {count}")
    return stated


FALCON_H1 = Family(
    architecture="falcon-h1",
    checkpoints=("FalconH1ForCausalLM",),
    names={
        **_NAMES,
        **{f"{_LAYER}feed_forward.{part}_proj": f"blk.{{}}.ffn_{part}" for part in GATED},
        **mamba2.names(_MAMBA),
    },
    optional=frozenset({"blk.{}.ssm_norm.weight"}),
    parameters=parameters,
    multipliers=multipliers,
    splits=_NORM,
    fused=partial(mamba2.views, _MAMBA),
    transform=mamba2.transform,
    defaults={"rope_theta": 100_000.0, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5},
)
