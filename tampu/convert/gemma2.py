"""Gemma 2: `gemma2` in GGUF. Norms are stored as their distance from 1, so 1 is added."""

from __future__ import annotations

from tampu.convert.config import Config
from tampu.convert.family import Family, Parameters, text_parameters
from tampu.convert.gemma3 import TEXT_NAMES, layer_pattern, transform
from tampu.errors import UnsupportedModelError

NAMES = {name: target for name, target in TEXT_NAMES.items() if "_norm" not in name.split(".")[-1]}
_PATTERN = 2  # every other layer has global attention
_LAYERS_27B = 46  # readers know this size's attention scale
_SCALAR_27B = 144


def parameters(config: Config) -> Parameters:
    """Return the keys of `gemma2`."""
    config.require("hidden_activation", ("gelu_pytorch_tanh",), "gelu_pytorch_tanh")
    config.require("use_bidirectional_attention", (False, None), default=False)
    keys = text_parameters(config, scalings=("none",))
    if layer_pattern(config, config.layers(), usual=_PATTERN) != _PATTERN:
        raise UnsupportedModelError(
            f"{config.where}: layer_types do not alternate; gemma2 has no other pattern"
        )
    keys |= {
        "attention.sliding_window": config.integer("sliding_window", 4096),
        "attn_logit_softcapping": config.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": config.number("final_logit_softcapping", 30.0),
    }
    scalar = config.number("query_pre_attn_scalar", 256)
    usual = _SCALAR_27B if keys["block_count"] == _LAYERS_27B else config.integer("head_dim")
    if scalar != usual:
        keys["attention.scale"] = scalar**-0.5
    return keys


GEMMA2 = Family(
    architecture="gemma2",
    checkpoints=("Gemma2ForCausalLM",),
    names=NAMES,
    parameters=parameters,
    tied=True,
    transform=transform,
)
