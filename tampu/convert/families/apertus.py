"""Apertus: `apertus`; the numbers of its activation are tensors in checkpoints, keys in files."""

from __future__ import annotations

from tampu.convert.config import Config
from tampu.convert.families.llama import NAMES, QK_NORM_NAMES, rope_factors
from tampu.convert.family import Family, Parameters, text_parameters
from tampu.models.apertus import KEYS

_LAYER = "model.layers.{}."
_OTHERS = ("layernorm", "gate_proj")  # which have other names, or are not there


def parameters(config: Config) -> Parameters:
    """Return the keys of `apertus` but for the activation's."""
    config.require("hidden_act", ("xielu",), "xielu")
    config.require("qk_norm", (True,), default=True)
    config.require("post_norm", (False,), default=False)
    return text_parameters(config, scalings=("none", "linear", "llama3", "yarn"))


APERTUS = Family(
    architecture="apertus",
    checkpoints=("ApertusForCausalLM",),
    names={name: target for name, target in NAMES.items() if not name.endswith(_OTHERS)}
    | QK_NORM_NAMES
    | {
        _LAYER + "attention_layernorm": "blk.{}.attn_norm",
        _LAYER + "feedforward_layernorm": "blk.{}.ffn_norm",
    },
    numbers={f"{_LAYER}mlp.act_fn.{key.rpartition('.')[2]}": key for key in KEYS},
    parameters=parameters,
    generated=rope_factors,
    defaults={"max_position_embeddings": 65_536, "rms_norm_eps": 1e-5, "rope_theta": 12e6},
)
