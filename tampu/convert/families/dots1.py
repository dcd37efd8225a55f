"""dots.llm1: `dots1`."""

from __future__ import annotations

from tampu.convert.config import Config
from tampu.convert.experts import DEEPSEEK_NAMES, OF_SOME_LAYERS, STACKS, deepseek_parameters
from tampu.convert.families.llama import QK_NORM_NAMES
from tampu.convert.families.qwen import parameters as qwen_parameters
from tampu.convert.family import Family, Parameters


def parameters(config: Config) -> Parameters:
    """Return the keys of `dots1`; refuse a sliding window, which its readers do not have."""
    config.require("moe_layer_freq", (1,), 1)
    window = config.get("sliding_window")
    first = config.natural("max_window_layers", config.layers())
    if window is not None and first < config.layers():
        raise config.error("max_window_layers", f"{first} of {config.layers()} have no window")
    return {**qwen_parameters(config), **deepseek_parameters(config)}


DOTS1 = Family(
    architecture="dots1",
    checkpoints=("Dots1ForCausalLM",),
    names=DEEPSEEK_NAMES | QK_NORM_NAMES,
    stacks=STACKS,
    optional=OF_SOME_LAYERS,
    parameters=parameters,
    defaults={"max_position_embeddings": 2048},
)
