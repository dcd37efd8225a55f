"""Hunyuan without experts: `hunyuan-dense`. A factor of RoPE's base makes its context long."""

from __future__ import annotations

from tampu.convert.config import Config, rope_settings
from tampu.convert.families.llama import NAMES
from tampu.convert.family import Family, Parameters, text_parameters

_LONG_CONTEXT = 1 << 18  # with the factor; config.json may state the context of the training
# Of pictures, experts, latent attention and a classifier, none of which these models have.
_UNUSED = (
    "add_classification_head", "anyres_pooling_size", "anyres_vit_two_views", "attention_head_dim",
    "cla_share_factor", "class_num", "dense_list", "eod_token_id", "group_limited_greedy",
    "im_end_id", "im_newline_id", "im_start_id", "mask_init_id", "norm_topk_prob",
    "num_media_embeds", "num_shared_expert", "org_vocab_size", "pad_id", "pool_type",
    "routed_scaling_factor", "skip_cls_token", "text_end_id", "text_start_id", "video_end_id",
    "video_start_id", "moe_topk", "moe_intermediate_size",
)  # fmt: skip


def parameters(config: Config) -> Parameters:
    """Return the keys of `hunyuan-dense`."""
    for key, usual in (
        ("hidden_act", "silu"),
        ("norm_type", "rms"),
        ("num_experts", 1),
        ("use_qk_norm", True),
        ("use_rotary_pos_emb", True),
        ("use_cla", False),
        ("use_mla", False),
        ("use_mixed_mlp_moe", False),
        ("position_embedding_xdrope", False),
    ):
        config.require(key, (usual,), usual)
    for key in _UNUSED:
        config.get(key)
    settings = rope_settings(config)
    kind = settings.string("rope_type", settings.string("type", "default"))
    if kind != "dynamic":
        return text_parameters(config, scalings=("none",))
    for key in ("factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"):
        settings.get(key)  # the reference ignores them, too
    size = config.head_size()
    base = settings.number("rope_theta", 10_000.0)
    base *= settings.number("alpha") ** (size / max(size - 2, 1))
    plain = {"rope_scaling": None, "rope_parameters": {"rope_theta": base}}
    keys = text_parameters(config.changed({**config.values, **plain}), scalings=("none",))
    return keys | {
        "context_length": _LONG_CONTEXT,
        "rope.scaling.type": "none",
        "rope.scaling.factor": 1.0,
        "rope.scaling.original_context_length": _LONG_CONTEXT,
    }


HUNYUAN = Family(
    architecture="hunyuan-dense",
    checkpoints=("HunYuanDenseV1ForCausalLM",),
    names=NAMES
    | {
        "model.layers.{}.self_attn.query_layernorm": "blk.{}.attn_q_norm",
        "model.layers.{}.self_attn.key_layernorm": "blk.{}.attn_k_norm",
    },
    parameters=parameters,
    defaults={"max_position_embeddings": 2048, "rms_norm_eps": 1e-5},
)
