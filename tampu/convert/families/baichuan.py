"""Baichuan and Refact: `baichuan`, `refact`, Llama's tensors, some of them fused in checkpoints."""

from __future__ import annotations

from tampu.convert.config import Config
from tampu.convert.families.gpt2 import KEYS
from tampu.convert.families.llama import NAMES, transform
from tampu.convert.family import Family, Parameters, text_parameters
from tampu.convert.layer_norm import without_rope
from tampu.convert.lazy_tensor import nth_part

_ATTENTION = "model.layers.{}.self_attn"
_PARTS = ("q_proj", "k_proj", "v_proj")
_MULTIPLE = 256  # of which Refact's width is one


def baichuan_parameters(config: Config) -> Parameters:
    """Return the keys of `baichuan`; the context has another name in the 13B models."""
    config.require("hidden_act", ("silu",), "silu")
    config.get("z_loss_weight")  # of the training
    if "max_position_embeddings" not in config:
        config = config.renamed({"model_max_length": "max_position_embeddings"})
    return text_parameters(config, scalings=("none", "linear"))


def refact_parameters(config: Config) -> Parameters:
    """Return the keys of `refact`."""
    config = config.renamed(KEYS | {"layer_norm_epsilon": "rms_norm_eps"})
    config.require("activation_function", ("silu",), "silu")
    config.require("multi_query", (True,), default=True)
    config.require("scale_attn_weights", (True,), default=True)
    width = int(2 * 4 * config.integer("hidden_size") / 3)
    changes = {
        "num_key_value_heads": 1,
        "intermediate_size": -(-width // _MULTIPLE) * _MULTIPLE,
    }
    return without_rope(
        text_parameters(config.changed({**config.values, **changes}), scalings=("none",))
    )


BAICHUAN = Family(
    architecture="baichuan",
    checkpoints=("BaichuanForCausalLM", "BaiChuanForCausalLM"),
    names={name: target for name, target in NAMES.items() if name[-6:] not in _PARTS},
    splits={
        f"{_ATTENTION}.W_pack.weight": {
            f"blk.{{}}.attn_{part}.weight": nth_part(index, axis=0, count=3)
            for index, part in enumerate("qkv")
        }
    },
    ignored=frozenset({f"{_ATTENTION}.rotary_emb.inv_freq"}),
    parameters=baichuan_parameters,
    transform=transform,
    defaults={"model_max_length": 4096},
)

REFACT = Family(
    architecture="refact",
    checkpoints=("GPTRefactForCausalLM",),
    names={
        "wte": "token_embd",
        "h.{}.ln_1": "blk.{}.attn_norm",
        "h.{}.attn.q": "blk.{}.attn_q",
        "h.{}.attn.c_proj": "blk.{}.attn_output",
        "h.{}.ln_2": "blk.{}.ffn_norm",
        "h.{}.mlp.c_proj": "blk.{}.ffn_down",
        "ln_f": "output_norm",
        "lm_head": "output",
    },
    splits={
        "h.{}.attn.kv.weight": {
            "blk.{}.attn_k.weight": nth_part(0, axis=0),
            "blk.{}.attn_v.weight": nth_part(1, axis=0),
        },
        "h.{}.mlp.gate_up_proj.weight": {
            "blk.{}.ffn_gate.weight": nth_part(0, axis=0),
            "blk.{}.ffn_up.weight": nth_part(1, axis=0),
        },
    },
    prefixes=(("transformer.", ""),),
    parameters=refact_parameters,
    defaults={"n_positions": 4096},
)
