"""Command R and its kin: `command-r`, and `cohere2` with windows; their RoPE rotates neighbours."""

from __future__ import annotations

from tampu.convert.config import Config
from tampu.convert.families.llama import NAMES, QK_NORM_NAMES
from tampu.convert.family import Family, Parameters, text_parameters
from tampu.convert.windows import window_flags

_NAMES = {name: target for name, target in NAMES.items() if "post_attention" not in name}
_PERIOD = 4


def parameters(config: Config) -> Parameters:
    """Return the keys of `command-r`; tensors show whether queries and keys are normed."""
    config.require("hidden_act", ("silu",), "silu")
    config.get("use_qk_norm")
    keys = text_parameters(config, scalings=("none",))
    del keys["attention.layer_norm_rms_epsilon"]
    context = config.integer("max_position_embeddings")
    return keys | {
        "context_length": config.integer("model_max_length", context),
        "attention.layer_norm_epsilon": config.number("layer_norm_eps", 1e-5),
        "logit_scale": config.number("logit_scale", 0.0625),
        "rope.scaling.type": "none",
    }


def cohere2_parameters(config: Config) -> Parameters:
    """Return the keys of `cohere2`; readers know that each fourth layer has no window."""
    for key, usual in (
        ("position_embedding_type", "rope_gptj"),
        ("rotary_pct", 1.0),
        ("use_gated_activation", True),
        ("use_parallel_block", True),
        ("use_parallel_embedding", False),
        ("order_of_interleaved_layers", "local_attn_first"),
    ):
        config.require(key, (usual,), usual)
    config.get("use_embedding_sharing")  # the tensors show it
    keys = parameters(config) | {"attention.sliding_window": config.integer("sliding_window", 4096)}
    period = config.integer("sliding_window_pattern", _PERIOD)
    usual_windows, listed = (
        [(index + 1) % every != 0 for index in range(config.layers())]
        for every in (_PERIOD, period)
    )
    windows = window_flags(config, listed)
    if windows != usual_windows:
        keys["attention.sliding_window_pattern"] = windows
    return keys


COMMAND_R = Family(
    architecture="command-r",
    checkpoints=("CohereForCausalLM",),
    names=_NAMES | QK_NORM_NAMES,
    parameters=parameters,
    optional=frozenset(QK_NORM_NAMES.values()),
    defaults={"max_position_embeddings": 8192, "rope_theta": 500_000.0},
    tied=True,
)

COHERE2 = Family(
    architecture="cohere2",
    checkpoints=("Cohere2ForCausalLM",),
    names=_NAMES,
    parameters=cohere2_parameters,
    defaults={"max_position_embeddings": 8192},
    tied=True,
)
