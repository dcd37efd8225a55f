"""StableLM and Orion: `stablelm`, `orion`; the norms of each head are in one tensor."""

from __future__ import annotations

from tampu.convert.config import Config
from tampu.convert.families.llama import NAMES
from tampu.convert.family import Family, Parameters
from tampu.convert.layer_norm import layer_norm_parameters

_HEAD_NORMS = {
    f"model.layers.{{}}.self_attn.{part}_layernorm.norms.{{}}": f"blk.{{}}.attn_{part}_norm"
    for part in "qk"
}


def parameters(config: Config) -> Parameters:
    """Return the keys of `stablelm`; the tensors show which norms there are, too."""
    config.require("hidden_act", ("silu",), "silu")
    config.get("qk_layernorm")
    config = config.renamed({"norm_eps": "layer_norm_eps", "rope_pct": "partial_rotary_factor"})
    return layer_norm_parameters(config, rotated=0.25) | {
        "use_parallel_residual": config.flag("use_parallel_residual", default=False)
    }


def orion_parameters(config: Config) -> Parameters:
    """Return the keys of `orion`, whose config.json speaks of RMS norms; they are LayerNorm."""
    config.require("hidden_act", ("silu",), "silu")
    return layer_norm_parameters(config, epsilon="rms_norm_eps")


STABLELM = Family(
    architecture="stablelm",
    checkpoints=("StableLmForCausalLM", "StableLMEpochForCausalLM"),
    names=NAMES,
    parameters=parameters,
    stacks=_HEAD_NORMS,
    optional=frozenset({"blk.{}.ffn_norm", *_HEAD_NORMS.values()}),
    ignored=frozenset({"model.layers.{}.self_attn.rotary_emb.inv_freq"}),
    defaults={"max_position_embeddings": 4096},
)

ORION = Family(
    architecture="orion",
    checkpoints=("OrionForCausalLM",),
    names=NAMES,
    parameters=orion_parameters,
    ignored=frozenset({"model.layers.{}.self_attn.rotary_emb.inv_freq"}),
    defaults={"max_position_embeddings": 4096},
)
