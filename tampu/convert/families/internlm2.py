"""InternLM 2 and 2.5: `internlm2`, Llama with other names and fused queries, keys and values."""

from __future__ import annotations

from collections.abc import Mapping

from tampu.convert.config import Config
from tampu.convert.families.llama import parameters as llama_parameters
from tampu.convert.families.llama import transform
from tampu.convert.family import Family, Parameters
from tampu.convert.fused import attention_parts
from tampu.convert.lazy_tensor import View

_LAYER = "model.layers.{}"


def parameters(config: Config) -> Parameters:
    """Return the keys of `internlm2`; beyond the context, its RoPE scaling may change the base.

    A dynamic scaling changes nothing up to max_position_embeddings, which is the file's context.
    """
    config.get("bias")  # the tensors show it
    scaling = config.get("rope_scaling") or {}
    if scaling.get("type", scaling.get("rope_type")) == "dynamic":
        config = config.changed({**config.values, "rope_scaling": None})
    return llama_parameters(config)


def fused(parameters: Parameters) -> Mapping[str, Mapping[str, View]]:
    """Return the parts of a fused projection."""
    return attention_parts(f"{_LAYER}.attention.wqkv.weight", parameters)


INTERNLM2 = Family(
    architecture="internlm2",
    checkpoints=("InternLM2ForCausalLM",),
    names={
        "model.tok_embeddings": "token_embd",
        f"{_LAYER}.attention_norm": "blk.{}.attn_norm",
        f"{_LAYER}.attention.wo": "blk.{}.attn_output",
        f"{_LAYER}.ffn_norm": "blk.{}.ffn_norm",
        f"{_LAYER}.feed_forward.w1": "blk.{}.ffn_gate",
        f"{_LAYER}.feed_forward.w3": "blk.{}.ffn_up",
        f"{_LAYER}.feed_forward.w2": "blk.{}.ffn_down",
        "model.norm": "output_norm",
        "output": "output",
    },
    parameters=parameters,
    fused=fused,
    transform=transform,
)
