"""EXAONE 4: `exaone4`, OLMo 2's tensors with norms of each head."""

from __future__ import annotations

from tampu.convert.config import Config
from tampu.convert.families.llama import QK_NORM_NAMES, rope_factors
from tampu.convert.families.olmo2 import POST_NORM_NAMES
from tampu.convert.family import Family, Parameters, text_parameters
from tampu.convert.windows import window_flags


def parameters(config: Config) -> Parameters:
    """Return the keys of `exaone4`."""
    config.require("hidden_act", ("silu",), "silu")
    keys = text_parameters(config, scalings=("none", "linear", "llama3", "yarn"))
    pattern = config.get("sliding_window_pattern")
    if "sliding_window" not in config:
        window_flags(config, [False] * config.layers())
        return keys
    return keys | {
        "attention.sliding_window": config.integer("sliding_window"),
        "attention.sliding_window_pattern": window_flags(config, _windows(config, pattern)),
    }


def _windows(config: Config, pattern: object) -> list[bool]:
    """Return which layers have a window: LLLG, or 4 for each fourth without one."""
    if isinstance(pattern, str):
        text = pattern
    else:
        text = "L" * (config.layers("sliding_window_pattern", 4) - 1) + "G"
    if not text or not {*text} <= {"L", "G"}:
        reason = f"{pattern!r} is neither a number nor like LLLG"
        raise config.error("sliding_window_pattern", reason)
    return [text[index % len(text)] == "L" for index in range(config.layers())]


EXAONE4 = Family(
    architecture="exaone4",
    checkpoints=("Exaone4ForCausalLM",),
    names=POST_NORM_NAMES | QK_NORM_NAMES,
    parameters=parameters,
    generated=rope_factors,
    defaults={"max_position_embeddings": 2048},
)
