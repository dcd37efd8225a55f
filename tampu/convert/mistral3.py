"""Mistral Small 3 and Ministral 3: `mistral3` in GGUF, text.

As `llama`, with positions scaled by YaRN, and queries that grow with their position.
"""

from __future__ import annotations

from tampu.convert.config import Config, read_rope
from tampu.convert.family import Family, Parameters
from tampu.convert.llama import LLAMA, parameters, rope_factors, transform


def text_keys(config: Config) -> Parameters:
    """Return the keys of `mistral3` for a text model's configuration."""
    keys = parameters(config)
    settings = read_rope(config).settings
    if "llama_4_scaling_beta" in settings:
        strength = settings.number("llama_4_scaling_beta")
        keys["attention.temperature_scale"] = strength  # llama.cpp's name
        keys["rope.scaling_beta"] = strength  # Ollama's
    return keys


MISTRAL3_TEXT = Family(
    architecture="mistral3",
    checkpoints=("Ministral3ForCausalLM",),
    names=LLAMA.names,
    parameters=text_keys,
    transform=transform,
    made=rope_factors,
)
