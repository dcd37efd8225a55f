"""Jamba: `jamba`."""

from __future__ import annotations

from tampu.convert import mamba2
from tampu.convert.config import Config
from tampu.convert.families.llama import GATED, NAMES_WITHOUT_MLP
from tampu.convert.families.mamba import step_rank
from tampu.convert.family import Family, Parameters, text_parameters
from tampu.convert.keys.experts import expert_counts

_LAYER = "model.layers.{}."
_MAMBA = f"{_LAYER}mamba."
_NORMS = {
    f"{_LAYER}input_layernorm": "blk.{}.attn_norm",
    f"{_LAYER}pre_ff_layernorm": "blk.{}.ffn_norm",
    "model.final_layernorm": "output_norm",
}
_OF_SOME_LAYERS = {
    **{name: target for name, target in NAMES_WITHOUT_MLP.items() if "self_attn" in name},
    **mamba2.first_names(_MAMBA),
    **{f"{_MAMBA}{part}_layernorm": f"blk.{{}}.ssm_{part}_norm" for part in ("dt", "b", "c")},
    **{f"{_LAYER}feed_forward.{part}_proj": f"blk.{{}}.ffn_{part}" for part in GATED},
    f"{_LAYER}feed_forward.router": "blk.{}.ffn_gate_inp",
}
_STACKS = {
    f"{_LAYER}feed_forward.experts.{{}}.{part}_proj": f"blk.{{}}.ffn_{part}_exps" for part in GATED
}
_VIEWS = mamba2.first_views(_MAMBA)


def parameters(config: Config) -> Parameters:
    """Return the keys of `jamba`."""
    config.require("hidden_act", ("silu",), "silu")
    config.require("sliding_window", (None,), None)
    period, offset = config.integer("attn_layer_period", 8), config.natural("attn_layer_offset", 4)
    for key in ("expert_layer_period", "expert_layer_offset", "layer_types"):
        config.get(key)  # the tensors and the numbers above say it
    keys = text_parameters(config, scalings=("none",))
    heads, hidden = keys["attention.head_count_kv"], config.integer("hidden_size")
    layers = range(config.layers())
    return keys | {
        "attention.head_count_kv": [heads if i % period == offset else 0 for i in layers],
        **expert_counts(config, "num_experts"),
        "ssm.conv_kernel": config.integer("mamba_d_conv", 4),
        "ssm.inner_size": config.integer("mamba_expand", 2) * hidden,
        "ssm.state_size": config.integer("mamba_d_state", 16),
        "ssm.time_step_rank": step_rank(config, "mamba_dt_rank"),
    }


JAMBA = Family(
    architecture="jamba",
    checkpoints=("JambaForCausalLM",),
    names={
        "model.embed_tokens": "token_embd",
        **_NORMS,
        **_OF_SOME_LAYERS,
        "lm_head": "output",
    },
    stacks=_STACKS,
    splits=_VIEWS,
    optional=frozenset(
        {
            *_OF_SOME_LAYERS.values(),
            *_STACKS.values(),
            *(name for parts in _VIEWS.values() for name in parts),
        }
    ),
    parameters=parameters,
    transform=mamba2.transform,
    defaults={"max_position_embeddings": 262_144, "num_experts": 16, "num_experts_per_tok": 2},
)
