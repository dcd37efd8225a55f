"""Hunyuan's mixtures of experts: `hunyuan-moe`.

Their RoPE for long contexts is a larger base, which depends on the setting `alpha`.
"""

from __future__ import annotations

from tampu.convert.config import Config, rope_settings
from tampu.convert.experts import STACKS
from tampu.convert.families.llama import GATED, NAMES_WITHOUT_MLP
from tampu.convert.family import Family, Parameters, text_parameters

_LAYER = "model.layers.{}."
_LONG = 262_144  # the context with the published alpha
_ALPHA = 1000


_ONLY = {
    "group_limited_greedy": False,
    "moe_layer_num_skipped": 0,
    "norm_topk_prob": True,
    "norm_type": "rms",
    "position_embedding_xdrope": False,
    "routed_scaling_factor": False,
    "use_cla": False,
    "use_mixed_mlp_moe": True,
    "use_mla": False,
    "use_qk_norm": True,
    "use_rotary_pos_emb": True,
}
_OF_CLASSIFIERS = ("cla_share_factor", "class_num", "dense_list", "pool_type", "skip_cls_token")


def parameters(config: Config) -> Parameters:
    """Return the keys of `hunyuan-moe`, whose readers always renormalize the experts' weights."""
    config.require("hidden_act", ("silu",), "silu")
    for name, value in _ONLY.items():
        config.require(name, (value,), value)
    config.require("attention_head_dim", (config.head_size(),), config.head_size())
    for name in _OF_CLASSIFIERS:
        config.get(name)
    config.require("num_shared_expert", (1, [1] * config.layers()), 1)
    width, experts = config.integer("intermediate_size"), config.integer("num_experts")
    used = _of_all_layers(config, "moe_topk", 1)
    if _of_all_layers(config, "moe_intermediate_size", width) != width:
        raise config.error("moe_intermediate_size", f"is not intermediate_size, {width}")
    if used > experts:
        raise config.error("moe_topk", f"{used} of {experts} experts")
    return {
        **text_parameters(with_base(config), scalings=("none", "linear")),
        **_context(config),
        "expert_count": experts,
        "expert_used_count": used,
        "expert_feed_forward_length": width,
        "expert_shared_feed_forward_length": width,
        "expert_shared_count": 1,
    }


def _of_all_layers(config: Config, key: str, usual: int) -> int:
    """Return a number that is stated once, or once for each layer."""
    stated = config.get(key, usual)
    if not isinstance(stated, list):
        return config.integer(key, usual)
    numbers = set(config.integers(key))
    if len(numbers) != 1 or min(numbers) < 1:
        raise config.error(key, f"{stated[:4]} differ by layer")
    return numbers.pop()


def _alpha(config: Config) -> float | None:
    """Return the setting of the RoPE base; None if there is none."""
    rope = rope_settings(config)
    is_dynamic = rope.get("rope_type", rope.get("type")) == "dynamic" and "alpha" in rope
    return rope.number("alpha") if is_dynamic else None


def _context(config: Config) -> Parameters:
    """Return the context that the published alpha gives: config.json states a shorter one."""
    return {"context_length": _LONG} if _alpha(config) == _ALPHA else {}


def with_base(config: Config) -> Config:
    """Return the configuration with the base that follows from alpha, instead of alpha."""
    alpha = _alpha(config)
    if alpha is None:
        return config
    rope, size = rope_settings(config), config.head_size()
    for name in ("factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "type"):
        rope.get(name)  # beside alpha they have no effect
    base = rope.number("rope_theta", 10_000.0) * alpha ** (size / (size - 2))
    plain = {"rope_scaling": None, "rope_parameters": {"rope_theta": base}, "rope_theta": base}
    return config.changed({**config.values, **plain})


HUNYUAN_MOE = Family(
    architecture="hunyuan-moe",
    checkpoints=("HunYuanMoEV1ForCausalLM",),
    names=NAMES_WITHOUT_MLP
    | {f"{_LAYER}mlp.shared_mlp.{part}_proj": f"blk.{{}}.ffn_{part}_shexp" for part in GATED}
    | {
        f"{_LAYER}self_attn.query_layernorm": "blk.{}.attn_q_norm",
        f"{_LAYER}self_attn.key_layernorm": "blk.{}.attn_k_norm",
        f"{_LAYER}mlp.gate.wg": "blk.{}.ffn_gate_inp",
    },
    stacks=STACKS,
    parameters=parameters,
    defaults={"max_position_embeddings": 2048, "rms_norm_eps": 1e-5},
)
