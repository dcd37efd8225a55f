"""Qwen 2 and 2.5 (`qwen2`) and the dense models of Qwen 3 (`qwen3`).

Qwen 2 has biases on query, key and value, Qwen 3 norms on query and key instead. Both rotate the
first half of a head with the second, as GGUF's architectures do: no rows are reordered.
"""

from __future__ import annotations

from tampu.convert.config import Config
from tampu.convert.family import Family, Parameters, text_parameters, within_window
from tampu.convert.llama import NAMES


def parameters(config: Config) -> Parameters:
    """Return the keys of `qwen2` and `qwen3`."""
    config.require("hidden_act", ("silu",), "silu")
    window = None
    if config.flag("use_sliding_window", default=False) and "sliding_window" in config:
        window = config.integer("sliding_window")
    keys = text_parameters(config, scalings=("none", "linear", "yarn"))
    return within_window(keys, window)


QWEN2 = Family(
    architecture="qwen2",
    checkpoints=("Qwen2ForCausalLM",),
    names=NAMES,
    parameters=parameters,
)

QWEN3 = Family(
    architecture="qwen3",
    checkpoints=("Qwen3ForCausalLM",),
    names=NAMES
    | {
        "model.layers.{}.self_attn.q_norm": "blk.{}.attn_q_norm",
        "model.layers.{}.self_attn.k_norm": "blk.{}.attn_k_norm",
    },
    parameters=parameters,
)
