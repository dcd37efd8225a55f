"""gpt-oss: `gpt-oss` in GGUF. Experts come in MXFP4, as blocks and scales, or in plain floats.

Of the fused projection, even entries are the gate's and odd ones the up projection's. Four-bit
values are read as floats, which hold them exactly: a file of the type MXFP4 stores the same values.
Source of the format: OCP Microscaling Formats (MX) specification 1.0.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tampu.convert.checkpoint import Stored, StoredTensor
from tampu.convert.config import Config
from tampu.convert.families.llama import NAMES_WITHOUT_MLP
from tampu.convert.family import Family, Parameters, text_parameters
from tampu.convert.keys.experts import moe_parameters
from tampu.convert.lazy_tensor import LazyTensor, strided, transposed
from tampu.errors import ModelFileError, UnsupportedModelError

_BLOCKS, _SCALES = "_blocks", "_scales"
_BIAS = 127  # of the exponents
_HALF = 16  # bytes of a block: two values each
_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_TABLE = np.concatenate([_VALUES, -_VALUES])


def decoded(blocks: StoredTensor, scales: StoredTensor) -> LazyTensor:
    """Return a tensor in MXFP4 as floats: (experts, inputs, outputs).

    Args:
        blocks: (experts, outputs, inputs / 32, 16), two values in a byte.
        scales: (experts, outputs, inputs / 32), exponents of two.
    """
    name = blocks.name.removesuffix(_BLOCKS)
    fits = blocks.shape == (*scales.shape, _HALF) and len(scales.shape) == 3
    if not fits or {blocks.dtype, scales.dtype} != {"U8"}:
        raise ModelFileError(name, f"blocks {blocks.shape} and scales {scales.shape}")
    experts, outputs, count = scales.shape
    inputs = count * 2 * _HALF

    def values() -> Stored:
        codes, exponents = blocks.read_bytes(), scales.read_bytes().astype(np.int32)
        pairs = np.stack([_TABLE[codes & 15], _TABLE[codes >> 4]], -1)  # the first is the low one
        floats = np.ldexp(pairs.reshape(*codes.shape[:3], -1), exponents[..., None] - _BIAS)
        result: Stored = floats.reshape(experts, outputs, inputs).swapaxes(1, 2)
        return result

    size = blocks.size_bytes + scales.size_bytes
    return LazyTensor.of(name, (experts, inputs, outputs), blocks.path, size, values)


def gather(tensors: Iterable[StoredTensor]) -> Iterable[StoredTensor]:
    """Return the tensors, each pair of blocks and scales combined into one."""
    by_name = {tensor.name: tensor for tensor in tensors}
    for name, tensor in by_name.items():
        if name.endswith(_BLOCKS):
            scales = by_name.get(name.removesuffix(_BLOCKS) + _SCALES)
            if scales is None:
                raise ModelFileError(name, "has no scales")
            yield decoded(tensor, scales)
        elif not name.endswith(_SCALES):
            yield tensor


def parameters(config: Config) -> Parameters:
    """Return the keys of `gpt-oss`."""
    config.require("hidden_act", ("silu",), "silu")
    keys = text_parameters(config, scalings=("yarn",), truncates=False)
    layers = config.layers()
    kinds = config.strings("layer_types")
    usual = [("sliding_attention", "full_attention")[index % 2] for index in range(layers)]
    if kinds and kinds != usual:
        raise UnsupportedModelError(f"{config.where}: layer_types do not alternate")
    config.require("swiglu_alpha", (1.702,), 1.702)
    limit = config.number("swiglu_limit", 7.0)
    if limit != 7.0:
        keys["swiglu_limit"] = limit
    return (
        keys
        | moe_parameters(config, width="intermediate_size")
        | {"attention.sliding_window": config.integer("sliding_window", 128)}
    )


_EXPERTS = "model.layers.{}.mlp.experts."

GPT_OSS = Family(
    architecture="gpt-oss",
    checkpoints=("GptOssForCausalLM",),
    names=NAMES_WITHOUT_MLP
    | {
        "model.layers.{}.post_attention_layernorm": "blk.{}.post_attention_norm",
        "model.layers.{}.self_attn.sinks": "blk.{}.attn_sinks.weight",
        "model.layers.{}.mlp.router": "blk.{}.ffn_gate_inp",
        _EXPERTS + "down_proj_bias": "blk.{}.ffn_down_exps.bias",
    },
    splits={
        _EXPERTS + "gate_up_proj": {
            "blk.{}.ffn_gate_exps.weight": transposed(strided(0, axis=-1)),
            "blk.{}.ffn_up_exps.weight": transposed(strided(1, axis=-1)),
        },
        _EXPERTS + "gate_up_proj_bias": {
            "blk.{}.ffn_gate_exps.bias": strided(0, axis=-1),
            "blk.{}.ffn_up_exps.bias": strided(1, axis=-1),
        },
        _EXPERTS + "down_proj": {"blk.{}.ffn_down_exps.weight": transposed()},
    },
    parameters=parameters,
    defaults={"rope_theta": 150_000.0, "max_position_embeddings": 131_072},
    quantizations=("mxfp4",),
    gather=gather,
)
