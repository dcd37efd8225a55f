"""Nemotron-H and Nemotron 3: `nemotron_h`, with experts `nemotron_h_moe`.

Layers of multi-token prediction are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from tampu.convert import mamba2
from tampu.convert.checkpoint import StoredTensor
from tampu.convert.config import Config
from tampu.convert.family import Family, Parameters, text_parameters
from tampu.convert.keys.experts import grouped_counts

_LAYER = "model.layers.{}."
_PARTS = {
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
    "gate": "ffn_gate_inp",
    "gate.e_score_correction_bias": "exp_probs_b.bias",
    "shared_experts.up_proj": "ffn_up_shexp",
    "shared_experts.down_proj": "ffn_down_shexp",
    "fc1_latent_proj": "ffn_latent_down",
    "fc2_latent_proj": "ffn_latent_up",
}
_OF_LAYERS = {f"{_LAYER}mixer.{theirs}": f"blk.{{}}.{ours}" for theirs, ours in _PARTS.items()}
_STACKS = {
    f"{_LAYER}mixer.experts.{{}}.{part}_proj": f"blk.{{}}.ffn_{part}_exps"
    for part in ("up", "down")
}
_OF_EXPERTS = (
    "n_routed_experts", "num_experts_per_tok", "n_group", "topk_group", "n_shared_experts",
    "moe_intermediate_size", "moe_shared_expert_intermediate_size", "moe_latent_size",
    "routed_scaling_factor", "norm_topk_prob",
)  # fmt: skip


def parameters(config: Config) -> Parameters:
    """Return the keys of `nemotron_h`, and those of the experts if there are some."""
    for key, activation in (("mlp_hidden_act", "relu2"), ("mamba_hidden_act", "silu")):
        config.require(key, (activation,), activation)
    config.require("sliding_window", (None,), None)
    kinds = layer_kinds(config)
    epsilon = config.number("layer_norm_epsilon", 1e-5)
    config.require("norm_eps", (epsilon,), epsilon)
    config = config.with_defaults({"num_hidden_layers": len(kinds), "rms_norm_eps": epsilon})
    keys = text_parameters(config, scalings=("none",))
    for key in ("moe_shared_expert_overlap", *_OF_EXPERTS):
        config.get(key)  # without experts they say nothing, and the order of sums never does
    width = config.integer("moe_intermediate_size" if "E" in kinds else "intermediate_size")
    return {
        **keys,
        "context_length": mamba2.CONTEXT,
        "feed_forward_length": [width * (kind in "-E") for kind in kinds],
        "attention.head_count_kv": [keys["attention.head_count_kv"] if kind == "*" else 0
                                    for kind in kinds],
        "attention.layer_norm_epsilon": epsilon,
        "rope.scaling.finetuned": False,
        **mamba2.shape_keys(
            config,
            heads="mamba_num_heads",
            features="mamba_head_dim",
            groups="n_groups",
            size="ssm_state_size",
            width="conv_kernel",
        ),
        **(_expert_keys(config) if "E" in kinds else {}),
    }  # fmt: skip


def layer_kinds(config: Config) -> str:
    """Return a letter for each layer: M (Mamba 2), * (attention), - (dense) or E (experts)."""
    key = "hybrid_override_pattern"
    stated = config.string(key) if key in config else mamba2.layer_kinds(config)
    if not stated or set(stated) - set("M*-E"):
        raise config.error(key, f"{stated[:40]!r} are not kinds of layers: M, *, - and E")
    if {"-", "E"} <= set(stated):
        raise config.error(key, "some layers are dense and some have experts: no file can say so")
    if len(stated) != config.layers(default=len(stated)):
        raise config.error(key, f"{len(stated)} layers, and num_hidden_layers is another number")
    return stated


def _expert_keys(config: Config) -> Parameters:
    config.require("n_shared_experts", (1,), 1)
    latent = {"moe_latent_size": config.integer("moe_latent_size")}
    return {
        **grouped_counts(config, "n_routed_experts"),
        "expert_feed_forward_length": config.integer("moe_intermediate_size"),
        "expert_shared_count": 1,
        "expert_shared_feed_forward_length": config.integer("moe_shared_expert_intermediate_size"),
        **(latent if "moe_latent_size" in config else {}),
    }


def gather(tensors: Iterable[StoredTensor]) -> Iterable[StoredTensor]:
    """Leave out multi-token prediction."""
    return (each for each in tensors if not each.name.startswith("mtp."))


NEMOTRON_H = Family(
    architecture="nemotron_h",
    architectures={"nemotron_h_moe": lambda names: "blk.{}.ffn_gate_inp" in names},
    checkpoints=("NemotronHForCausalLM",),
    prefixes=(("backbone.", "model."),),
    names={
        "model.embeddings": "token_embd",
        f"{_LAYER}norm": "blk.{}.attn_norm",
        **mamba2.names(f"{_LAYER}mixer."),
        **_OF_LAYERS,
        "model.norm_f": "output_norm",
        "lm_head": "output",
    },
    stacks=_STACKS,
    optional=mamba2.PARTS.union(_OF_LAYERS.values(), _STACKS.values()),
    parameters=parameters,
    fused=partial(mamba2.views, f"{_LAYER}mixer."),
    gather=gather,
    transform=mamba2.transform,
    defaults={"max_position_embeddings": 4096},
)
