"""MiniCPM3: `minicpm3`, with latent attention (`kv_b_proj` stays one tensor) and three scales."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tampu.convert.config import Config
from tampu.convert.families.deepseek2 import LATENT_NAMES, QUERY_TARGETS
from tampu.convert.families.granite import minicpm_parameters
from tampu.convert.families.llama import NAMES, rope_factors
from tampu.convert.family import Family, Parameters

_REPLACED = frozenset(f"model.layers.{{}}.self_attn.{part}_proj" for part in "qkv")


def parameters(config: Config) -> Parameters:
    """Return the keys of `minicpm3`: the heads have keys and values of their own."""
    content, rotated = config.integer("qk_nope_head_dim", 64), config.integer("qk_rope_head_dim")
    config.require("attention_bias", (False,), default=False)
    config.require("mlp_bias", (False,), default=False)
    config.require("qk_head_dim", (None, content + rotated), None)
    heads = config.integer("num_attention_heads")
    config.require("num_key_value_heads", (heads,), heads)
    value = config.integer("hidden_size") // heads
    keys = minicpm_parameters(as_rotated(config)) | {
        "attention.key_length": content + rotated,
        "attention.value_length": config.integer("v_head_dim", value),
        "attention.kv_lora_rank": config.integer("kv_lora_rank", 256),
    }
    if config.get("q_lora_rank") is not None:
        keys["attention.q_lora_rank"] = config.integer("q_lora_rank")
    return keys


def as_rotated(config: Config) -> Config:
    """Return the configuration with heads of the features that RoPE rotates."""
    return config.changed({**config.values, "head_dim": config.integer("qk_rope_head_dim", 32)})


def generated(config: Config) -> dict[str, npt.NDArray[np.float32]]:
    """Return the factors of RoPE."""
    return rope_factors(as_rotated(config))


MINICPM3 = Family(
    architecture="minicpm3",
    checkpoints=("MiniCPM3ForCausalLM",),
    names={name: target for name, target in NAMES.items() if name not in _REPLACED}
    | LATENT_NAMES
    | {"model.layers.{}.self_attn.kv_b_proj": "blk.{}.attn_kv_b"},
    optional=QUERY_TARGETS,
    parameters=parameters,
    generated=generated,
    defaults={"max_position_embeddings": 32_768, "rms_norm_eps": 1e-5, "qk_rope_head_dim": 32},
    tied=True,
)
