"""Phi-3 and Phi-4: `phi3`, with queries, keys and values in one tensor, gate and up in another."""

from __future__ import annotations

from tampu.convert.config import Config
from tampu.convert.families.llama import NAMES_WITHOUT_MLP, rope_factors
from tampu.convert.family import Family, Parameters, text_parameters


def parameters(config: Config) -> Parameters:
    """Return the keys of phi3: a window of 0 means no window; no key names the type of scaling."""
    config.require("hidden_act", ("silu",), "silu")
    keys = text_parameters(config, scalings=("none", "longrope"), rotated_part=1.0)
    keys.pop("rope.scaling.type", None)
    window = config.integer("sliding_window") if "sliding_window" in config else 0
    original = config.integer("original_max_position_embeddings", 4096)
    return {
        "rope.scaling.original_context_length": original,
        **keys,
        "attention.sliding_window": window,
    }


_LAYER = "model.layers.{}."
_APART = {f"{_LAYER}self_attn.{part}_proj" for part in "qkv"}

PHI3 = Family(
    architecture="phi3",
    checkpoints=("Phi3ForCausalLM",),
    names={name: target for name, target in NAMES_WITHOUT_MLP.items() if name not in _APART}
    | {
        _LAYER + "self_attn.qkv_proj": "blk.{}.attn_qkv",
        _LAYER + "mlp.gate_up_proj": "blk.{}.ffn_up",
        _LAYER + "mlp.down_proj": "blk.{}.ffn_down",
    },
    parameters=parameters,
    generated=rope_factors,
    defaults={"max_position_embeddings": 4096},
)
