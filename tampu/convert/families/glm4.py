"""GLM-4 (0414): `glm4`; the gate and the up projection are fused, and RoPE rotates neighbours."""

from __future__ import annotations

from tampu.convert.config import Config
from tampu.convert.families.llama import NAMES_WITHOUT_MLP
from tampu.convert.family import Family, Parameters, text_parameters

_LAYER = "model.layers.{}."


def parameters(config: Config) -> Parameters:
    """Return the keys of `glm4`."""
    config.require("hidden_act", ("silu",), "silu")
    return text_parameters(config, scalings=("none", "linear", "yarn"), rotated_part=0.5)


GLM4 = Family(
    architecture="glm4",
    checkpoints=("Glm4ForCausalLM",),
    names=NAMES_WITHOUT_MLP
    | {
        _LAYER + "post_self_attn_layernorm": "blk.{}.post_attention_norm",
        _LAYER + "post_attention_layernorm": "blk.{}.ffn_norm",
        _LAYER + "mlp.gate_up_proj": "blk.{}.ffn_up",
        _LAYER + "mlp.down_proj": "blk.{}.ffn_down",
        _LAYER + "post_mlp_layernorm": "blk.{}.post_ffw_norm",
    },
    parameters=parameters,
    defaults={"max_position_embeddings": 131_072},
)
