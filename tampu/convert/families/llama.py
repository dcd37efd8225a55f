"""Llama 1 to 3.3, Mistral, Mixtral: `llama` in GGUF, whose RoPE rotates adjacent elements.

Checkpoints rotate the first half of a head with the second, so the rows of the query and key
projections are reordered. Llama 3's RoPE scaling becomes the tensor `rope_freqs`.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tampu.convert.checkpoint import Stored
from tampu.convert.config import Config, Rope, read_rope
from tampu.convert.family import Family, Parameters, rotated_features, text_parameters, with_window
from tampu.convert.keys.experts import moe_parameters

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.layers.{}.input_layernorm": "blk.{}.attn_norm",
    "model.layers.{}.self_attn.q_proj": "blk.{}.attn_q",
    "model.layers.{}.self_attn.k_proj": "blk.{}.attn_k",
    "model.layers.{}.self_attn.v_proj": "blk.{}.attn_v",
    "model.layers.{}.self_attn.o_proj": "blk.{}.attn_output",
    "model.layers.{}.post_attention_layernorm": "blk.{}.ffn_norm",
    "model.layers.{}.mlp.gate_proj": "blk.{}.ffn_gate",
    "model.layers.{}.mlp.up_proj": "blk.{}.ffn_up",
    "model.layers.{}.mlp.down_proj": "blk.{}.ffn_down",
    "model.norm": "output_norm",
    "lm_head": "output",
}
NAMES_WITHOUT_MLP = {name: target for name, target in NAMES.items() if ".mlp." not in name}
QK_NORM_NAMES = {
    f"model.layers.{{}}.self_attn.{part}_norm": f"blk.{{}}.attn_{part}_norm" for part in "qk"
}
GATED = ("gate", "up", "down")  # the projections of a gated feed-forward part


def parameters(config: Config) -> Parameters:
    """Return the keys of `llama`."""
    config.require("hidden_act", ("silu",), "silu")
    window = config.integer("sliding_window") if "sliding_window" in config else None
    keys = text_parameters(config, scalings=("none", "linear", "llama3", "yarn"))
    return with_window(keys, window)


def interleave(values: Stored, heads: int) -> Stored:
    """Interleave the two halves of each head's rows.

    [heads * size, ...] with the rows 0, 1, 2, 3 of a head of four become 0, 2, 1, 3.
    """
    size = values.shape[0] // heads
    halves = values.reshape(heads, 2, size // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)


def transform(name: str, values: Stored, parameters: Parameters) -> Stored:
    """Reorder the rows of the text model's query and key projections, and their biases."""
    for part, key in ((".attn_q.", "head_count"), (".attn_k.", "head_count_kv")):
        heads = parameters[f"attention.{key}"]
        if name.startswith("blk.") and part in name and isinstance(heads, int):
            return interleave(values, heads)
    return values


MAX_FACTOR = 1 << 20  # published ones are below a hundred


def rope_factors(config: Config) -> dict[str, npt.NDArray[np.float32]]:
    """Return the divisors of the rotary frequencies, [rotated features / 2].

    For `longrope` config.json has them. For `llama3` wavelengths longer than original / low are
    stretched by the factor, those shorter than original / high stay, and between them the frequency
    moves linearly from one to the other.
    Source: the Llama 3.1 reference implementation.
    """
    config = config.section("text_config") if "text_config" in config else config
    rope = read_rope(config, is_partial=True)
    if rope.kind == "longrope":
        pairs = rotated_features(config, 1.0) // 2
        return {
            f"rope_factors_{end}.weight": _listed(rope, f"{end}_factor", pairs)
            for end in ("short", "long")
        }
    if rope.kind != "llama3":
        return {}
    factor = rope.settings.number("factor", 8.0)
    low = rope.settings.number("low_freq_factor", 1.0)
    high = rope.settings.number("high_freq_factor", 4.0)
    original = rope.settings.integer("original_max_position_embeddings", 8192)
    if high <= low:
        raise rope.settings.error("high_freq_factor", f"{high} is not above low_freq_factor {low}")
    size = config.head_size()
    frequency = rope.base ** -(np.arange(0, size, 2, dtype=np.float64) / size)
    turns = original * frequency / (2 * math.pi)  # in the original context
    share = np.clip((turns - low) / (high - low), 0, 1)
    divisors = 1 / ((1 - share) / factor + share)
    if divisors.max() > MAX_FACTOR:
        raise rope.settings.error("factor", f"{factor} is more than the limit of {MAX_FACTOR}")
    return {"rope_freqs.weight": divisors.astype(np.float32)}


def _listed(rope: Rope, key: str, pairs: int) -> npt.NDArray[np.float32]:
    """Return the factors of LongRoPE that config.json lists for short or long contexts."""
    factors = np.array(rope.settings.numbers(key))
    if len(factors) != pairs or factors.min() <= 0 or factors.max() > MAX_FACTOR:
        reason = f"they are not {pairs} factors above 0 and at most {MAX_FACTOR}"
        raise rope.settings.error(key, reason)
    return factors.astype(np.float32)


LLAMA = Family(
    architecture="llama",
    checkpoints=("LlamaForCausalLM", "MistralForCausalLM"),
    names=NAMES,
    parameters=parameters,
    ignored=frozenset(
        {"model.rotary_emb.inv_freq", "model.layers.{}.self_attn.rotary_emb.inv_freq"}
    ),
    transform=transform,
    generated=rope_factors,
    defaults={"max_position_embeddings": 2048},
)

XVERSE = replace(LLAMA, architecture="xverse", checkpoints=("XverseForCausalLM",))

MIXTRAL = Family(
    architecture="llama",
    checkpoints=("MixtralForCausalLM",),
    names=NAMES_WITHOUT_MLP | {"model.layers.{}.block_sparse_moe.gate": "blk.{}.ffn_gate_inp"},
    stacks={
        f"model.layers.{{}}.block_sparse_moe.experts.{{}}.{theirs}": f"blk.{{}}.ffn_{ours}_exps"
        for theirs, ours in zip(("w1", "w3", "w2"), GATED, strict=True)
    },
    parameters=lambda config: (
        parameters(config) | moe_parameters(config, width="intermediate_size")
    ),
    defaults={"rope_theta": 1e6, "max_position_embeddings": 131_072},
    transform=transform,
    generated=rope_factors,
)
