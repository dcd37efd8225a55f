"""The keys that families of decoders with LayerNorm share."""

from __future__ import annotations

from tampu.convert.config import Config
from tampu.convert.family import Parameters, text_parameters


def layer_norm_parameters(
    config: Config, *, epsilon: str = "layer_norm_eps", rotated: float = 1.0
) -> Parameters:
    """Return the keys common to decoders with LayerNorm and RoPE.

    Args:
        config: the text model's configuration.
        epsilon: the key in config.json of the epsilon of all norms.
        rotated: which part of a head is rotated if config.json does not say so.
    """
    keys = text_parameters(config, scalings=("none", "linear", "yarn"), rotated_part=rotated)
    del keys["attention.layer_norm_rms_epsilon"]
    return keys | {"attention.layer_norm_epsilon": config.number(epsilon, 1e-5)}


def without_rope(keys: Parameters) -> Parameters:
    """Return the keys of a decoder whose queries and keys are not rotated."""
    return {key: value for key, value in keys.items() if not key.startswith("rope.")}
