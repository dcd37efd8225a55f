"""Mamba 1 and 2 alone: `mamba` and `mamba2`."""

from __future__ import annotations

from functools import partial

from tampu.convert import mamba2
from tampu.convert.config import Config
from tampu.convert.family import Family, Parameters

_LAYER = "backbone.layers.{}."
_MIXER = f"{_LAYER}mixer."
_NAMES = {
    "backbone.embeddings": "token_embd",
    f"{_LAYER}norm": "blk.{}.attn_norm",
    "backbone.norm_f": "output_norm",
    "lm_head": "output",
}
_PREFIXES = (("model.backbone.", "backbone."), ("model.lm_head", "lm_head"))


def parameters(config: Config) -> Parameters:
    """Return the keys that both have; llama.cpp wants those of attention, too."""
    config.require("hidden_act", ("silu",), "silu")
    return {
        "vocab_size": config.integer("vocab_size"),
        "context_length": mamba2.CONTEXT,
        "embedding_length": config.integer("hidden_size"),
        "block_count": config.layers(),
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "attention.layer_norm_rms_epsilon": config.number("layer_norm_epsilon", 1e-5),
    }


def first_parameters(config: Config) -> Parameters:
    """Return the keys of `mamba`."""
    hidden = config.integer("hidden_size")
    inner = config.integer("intermediate_size", config.integer("expand", 2) * hidden)
    return parameters(config) | {
        "ssm.conv_kernel": config.integer("conv_kernel", 4),
        "ssm.inner_size": inner,
        "ssm.state_size": config.integer("state_size", 16),
        "ssm.time_step_rank": step_rank(config, "time_step_rank"),
        "ssm.dt_b_c_rms": False,
    }


def step_rank(config: Config, key: str) -> int:
    """Return the inputs of the projection of the steps; `auto` is a sixteenth of the features."""
    usual = -(-config.integer("hidden_size") // 16)
    return usual if config.get(key, "auto") == "auto" else config.integer(key)


def second_parameters(config: Config) -> Parameters:
    """Return the keys of `mamba2`."""
    config.get("time_step_rank")  # of Mamba 1: the number of heads takes its place
    shape = mamba2.shape_keys(
        config,
        heads="num_heads",
        features="head_dim",
        groups="n_groups",
        size="state_size",
        width="conv_kernel",
    )
    return parameters(config) | shape


MAMBA = Family(
    architecture="mamba",
    checkpoints=("MambaForCausalLM",),
    prefixes=_PREFIXES,
    names=_NAMES | mamba2.first_names(_MIXER),
    parameters=first_parameters,
    splits=mamba2.first_views(_MIXER),
    transform=mamba2.transform,
    tied=True,
)
MAMBA2 = Family(
    architecture="mamba2",
    checkpoints=("Mamba2ForCausalLM",),
    prefixes=_PREFIXES,
    names=_NAMES | mamba2.names(_MIXER),
    parameters=second_parameters,
    fused=partial(mamba2.views, _MIXER),
    transform=mamba2.transform,
    defaults={"num_heads": 128, "head_dim": 64, "n_groups": 8, "state_size": 128},
)
