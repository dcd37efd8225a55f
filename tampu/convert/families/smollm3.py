"""SmolLM3: `smollm3`, Llama's tensors, of which each fourth layer rotates nothing."""

from __future__ import annotations

from tampu.convert.config import Config
from tampu.convert.families.llama import NAMES, transform
from tampu.convert.family import Family, Parameters, text_parameters
from tampu.models.smollm3 import NOPE_INTERVAL, has_rope


def parameters(config: Config) -> Parameters:
    """Return the keys of `smollm3`; refuse other layers without RoPE than each fourth."""
    config.require("hidden_act", ("silu",), "silu")
    config.require("use_sliding_window", (False,), default=False)
    config.require("no_rope_layer_interval", (NOPE_INTERVAL,), NOPE_INTERVAL)
    rotated = [int(has_rope(index)) for index in range(config.layers())]
    stated = config.integers("no_rope_layers", rotated)
    if stated != rotated:
        raise config.error("no_rope_layers", f"{stated} is not 0 for each fourth layer only")
    return text_parameters(config, scalings=("none", "linear", "yarn"))


SMOLLM3 = Family(
    architecture="smollm3",
    checkpoints=("SmolLM3ForCausalLM",),
    names=NAMES,
    parameters=parameters,
    transform=transform,
    defaults={"rope_theta": 2e6, "max_position_embeddings": 32_768},
    tied=True,
)
