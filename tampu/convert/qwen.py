"""Qwen 2 and 2.5 (`qwen2`) and the dense models of Qwen 3 (`qwen3`).

Qwen 2 has biases on query, key and value, Qwen 3 norms on query and key instead. Both rotate the
first half of a head with the second, as GGUF's architectures do: no rows are reordered.
"""

from __future__ import annotations

from tampu.convert.config import Config
from tampu.convert.family import Family, Parameters, text_parameters, with_window
from tampu.convert.llama import NAMES
from tampu.errors import UnsupportedModelError


def parameters(config: Config) -> Parameters:
    """Return the keys of `qwen2` and `qwen3`."""
    config.require("hidden_act", ("silu",), "silu")
    keys = text_parameters(config, scalings=("none", "linear", "yarn"))
    return with_window(keys, _window(config))


def _window(config: Config) -> int | None:
    """Return the sliding window of all layers, None if there is none.

    Raises:
        UnsupportedModelError: if only the upper layers have it.
    """
    if not config.flag("use_sliding_window", default=False) or "sliding_window" not in config:
        return None
    layers = config.integer("num_hidden_layers")
    full = config.values.get("max_window_layers", layers)
    if full == 0:
        return config.integer("sliding_window")
    if type(full) is int and full >= layers:
        return None
    raise UnsupportedModelError(
        f"{config.where}: max_window_layers is {full!r}; a window in some of the layers only is "
        "not supported"
    )


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
