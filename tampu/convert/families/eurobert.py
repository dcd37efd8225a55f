"""EuroBERT: `eurobert`, Llama's tensors in their own order, read both ways."""

from __future__ import annotations

from tampu.convert.config import Config
from tampu.convert.families.llama import NAMES
from tampu.convert.family import Family, Parameters, text_parameters


def parameters(config: Config) -> Parameters:
    """Return the keys of `eurobert`."""
    config.require("hidden_act", ("silu",), "silu")
    keys = text_parameters(config, scalings=("none",))
    return keys | {"attention.causal": False, "rope.scaling.type": "none"}


EUROBERT = Family(
    architecture="eurobert",
    checkpoints=("EuroBertModel", "EuroBertForMaskedLM"),
    names={name: new for name, new in NAMES.items() if new != "output"},
    parameters=parameters,
    ignored=frozenset({"lm_head.weight", "lm_head.bias"}),  # it predicts masked tokens
    defaults={"rope_theta": 250_000.0, "rms_norm_eps": 1e-5},
    tied=True,  # encoders have no output projection
)
